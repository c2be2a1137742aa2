package confine_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/confine"
	"github.com/space-sandbox/space/internal/sandbox"
)

// testContext outlives the test by its cleanups, and is bounded.
func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func openGroups(t *testing.T) *confine.Groups {
	t.Helper()
	groups, err := confine.OpenGroups("t" + string(sandbox.NewID()))
	if err != nil {
		t.Fatal(err)
	}
	if m := groups.Missing(); len(m) > 0 {
		t.Fatalf("this host has no controller for %v", m)
	}
	t.Cleanup(func() {
		names, err := groups.List()
		if err != nil || len(names) > 0 {
			t.Errorf("groups left: %v %v", names, err)
		}
		if err := groups.Prune(testContext(t)); err != nil {
			t.Errorf("Prune: %v", err)
		}
	})
	return groups
}

func createGroup(t *testing.T, groups *confine.Groups, name string, l confine.Limits) *confine.Group {
	t.Helper()
	g, err := groups.Create(name, l)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	t.Cleanup(func() {
		if err := g.Remove(testContext(t)); err != nil {
			t.Errorf("Remove: %v", err)
		}
	})
	return g
}

func TestGroupsLifecycle(t *testing.T) {
	t.Parallel()
	groups := openGroups(t)
	if names, err := groups.List(); err != nil || len(names) != 0 {
		t.Errorf("List before: %v %v", names, err)
	}
	g := createGroup(t, groups, "vm-a", confine.Limits{MemoryBytes: 64 << 20, CPUQuota: 0.5, PIDs: 8})
	if _, err := groups.Create("vm-a", confine.Limits{}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("second Create: %v", err)
	}
	if names, err := groups.List(); err != nil || !slices.Equal(names, []string{"vm-a"}) {
		t.Errorf("List: %v %v", names, err)
	}
	opened, err := groups.Open("vm-a")
	if err != nil || opened.Path() != g.Path() || opened.Name() != "vm-a" {
		t.Errorf("Open: %v %v", opened, err)
	}
	if err := opened.Remove(testContext(t)); err != nil {
		t.Errorf("Remove: %v", err)
	}
	if _, err := groups.Open("vm-a"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Open after Remove: %v", err)
	}
	for _, bad := range []string{"", "..", "a/b", "UPPER", strings.Repeat("a", 65)} {
		if _, err := groups.Create(bad, confine.Limits{}); err == nil {
			t.Errorf("Create(%q) succeeded", bad)
		}
	}
}

func TestGroupHasChildFromItsBirthAndKillsDescendants(t *testing.T) {
	t.Parallel()
	groups := openGroups(t)
	g := createGroup(t, groups, "vm-b", confine.Limits{PIDs: 16})
	spec := shell(`sleep 600 & sleep 600 & setsid sleep 600 & exec sleep 600`)
	spec.Group = g
	p := start(t, spec)
	if id := p.Identity(); id.Cgroup != g.Path() {
		t.Errorf("identity: %+v", id)
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.PID()))
	if err != nil || strings.Count(string(data), g.Path()) < 1 {
		t.Errorf("groups of the child: %v\n%s", err, data)
	}
	a, err := confine.Adopt(p.Identity())
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if err := a.Kill(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if pids, err := g.Procs(); err != nil || len(pids) > 0 {
		t.Errorf("left: %v %v", pids, err)
	}
}

func TestGroupLimitsProcesses(t *testing.T) {
	t.Parallel()
	groups := openGroups(t)
	spec := shell(`sleep 0 & sleep 0 & sleep 0 & sleep 0 & sleep 0 & sleep 0 & wait`)
	spec.Group = createGroup(t, groups, "vm-c", confine.Limits{PIDs: 3})
	if text, _ := output(t, spec); !strings.Contains(text, "fork") {
		t.Errorf("seven processes in a group of three:\n%s", text)
	}
	// When the limit is reached already, the caller hears of it. A start itself may take one place (v1).
	full := sleeper()
	full.Group = createGroup(t, groups, "vm-d", confine.Limits{PIDs: 2})
	start(t, full)
	for range 2 {
		p, err := confine.Start(full)
		if err != nil {
			return
		}
		t.Cleanup(func() { p.Kill(testContext(t)) })
	}
	t.Error("three processes in a group of two")
}

func TestGroupReportsOOM(t *testing.T) {
	t.Parallel()
	groups := openGroups(t)
	g := createGroup(t, groups, "vm-e", confine.Limits{MemoryBytes: 16 << 20})
	if oom, err := g.OOMKilled(); oom || err != nil {
		t.Errorf("before: %v %v", oom, err)
	}
	spec := shell(`head -c 100M /dev/zero | tail -c 90M >/dev/null`)
	spec.Group = g
	if _, status := output(t, spec); status.ExitCode != 128+int(unix.SIGKILL) {
		t.Errorf("status %v", status)
	}
	if oom, err := g.OOMKilled(); !oom || err != nil {
		t.Errorf("after: %v %v", oom, err)
	}
}

func TestOpenGroupsRefusesOddIDs(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "../x", "a b", "Ä"} {
		if _, err := confine.OpenGroups(bad); err == nil {
			t.Errorf("OpenGroups(%q) succeeded", bad)
		}
	}
}
