package vmmtest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/space-sandbox/space/internal/vmm"
)

// counts is what this process and the host have.
type counts struct {
	descriptors int
}

func count(t *testing.T) counts {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return counts{descriptors: len(entries)}
}

// nothingLeft waits until nothing of the machine is there: no process of its uid, nothing in its run directory, no
// descriptor more than before it. Descriptors are closed a moment after the end by goroutines.
func (s suite) nothingLeft(t *testing.T, spec vmm.Spec, before counts) {
	t.Helper()
	var left []string
	gone := s.await(func() bool {
		left = leftovers(t, spec)
		if now := count(t); now.descriptors > before.descriptors {
			left = append(left, fmt.Sprintf("%d descriptors more: %v", now.descriptors-before.descriptors, links()))
		}
		return len(left) == 0
	})
	if !gone {
		t.Errorf("left: %s", strings.Join(left, "; "))
	}
}

func leftovers(t *testing.T, spec vmm.Spec) []string {
	t.Helper()
	var left []string
	entries, err := os.ReadDir(spec.RunDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		left = append(left, "file "+e.Name())
	}
	return append(left, processes(t, spec.UID)...)
}

// processes lists what runs with a uid, zombies too.
func processes(t *testing.T, uid uint32) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/status")
	if err != nil || len(files) == 0 {
		t.Fatalf("processes: %v", err)
	}
	var out []string
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			continue // it has ended
		}
		lines := strings.Split(string(data), "\n")
		i := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "Uid:") })
		if i >= 0 && slices.Contains(strings.Fields(lines[i]), fmt.Sprint(uid)) {
			out = append(out, "process "+filepath.Base(filepath.Dir(f))+" "+lines[0])
		}
	}
	return out
}

func links() []string {
	names, _ := filepath.Glob("/proc/self/fd/*")
	var out []string
	for _, n := range names {
		if target, err := os.Readlink(n); err == nil {
			out = append(out, target)
		}
	}
	return out
}
