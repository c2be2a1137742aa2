package node

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/space-sandbox/space/internal/confine"
	"github.com/space-sandbox/space/internal/ociimage"
	"github.com/space-sandbox/space/internal/sandbox"
)

// scripted is a Worker that makes an image of the archive's bytes without parsing them.
type scripted struct {
	scan     ociimage.Result
	settings *ociimage.Settings
	size     int64 // of the image; 0: 1 MiB
	err      error
	jobs     []WorkerJob
}

func (s *scripted) run(_ context.Context, job WorkerJob) (ociimage.Result, error) {
	s.jobs = append(s.jobs, job)
	if s.err != nil {
		return ociimage.Result{}, s.err
	}
	if job.Mode == ociimage.ModeScan {
		return s.scan, nil
	}
	size := s.size
	if size == 0 {
		size = 1 << 20
	}
	content := make([]byte, size)
	if _, err := job.Archive.ReadAt(content[:min(size, 16)], 0); err != nil {
		return ociimage.Result{}, err
	}
	_, err := job.Image.Write(content)
	return ociimage.Result{Settings: s.settings}, err
}

// imports is a node with a scripted worker.
func imports(t *testing.T) (*Node, *scripted) {
	t.Helper()
	w := newWorld(t)
	n := w.start()
	s := &scripted{scan: ociimage.Result{UIDs: []uint32{0, 1000}, GIDs: []uint32{0}}, settings: &ociimage.Settings{User: "1000", Workdir: "/w"}}
	n.deps.Worker = s.run
	return n, s
}

func importBytes(t *testing.T, n *Node, name, content string) (string, error) {
	t.Helper()
	m, _, err := n.importArchive(t.Context(), name, func(f *os.File) error {
		_, err := f.WriteString(content)
		return err
	})
	left, globErr := filepath.Glob(filepath.Join(n.deps.Dir.PoolDir(), "staging", "*"))
	if globErr != nil || len(left) != 0 {
		t.Errorf("left in the pool: %v, %v", left, globErr)
	}
	return m.Digest, err
}

func names(t *testing.T, n *Node, digest string) []string {
	t.Helper()
	tpl, err := n.deps.Pool.OpenTemplate(digest)
	if err != nil {
		t.Fatal(err)
	}
	defer tpl.Close()
	return tpl.Manifest.Names
}

func TestImportAndNames(t *testing.T) {
	t.Parallel()
	n, s := imports(t)
	first, err := importBytes(t, n, "app:v1", "first content...")
	if err != nil {
		t.Fatal(err)
	}
	build := s.jobs[1]
	if build.FirstID != n.deps.Dir.Installation.UIDBase+workerSlot || !slices.Equal(build.UIDs, []uint32{0, 1000}) || !slices.Equal(build.GIDs, []uint32{0}) {
		t.Errorf("the build's ids: %+v", build)
	}
	if again, err := importBytes(t, n, "app:v2", "first content..."); err != nil || again != first {
		t.Fatalf("the same content: %s, %v", again, err)
	}
	if diff := cmp.Diff([]string{"app:v2", "app:v1"}, names(t, n, first)); diff != "" {
		t.Errorf("names of the first (-want +got):\n%s", diff)
	}
	second, err := importBytes(t, n, "app:v1", "second content..")
	if err != nil || second == first {
		t.Fatalf("other content: %s, %v", second, err)
	}
	if diff := cmp.Diff([][]string{{"app:v2"}, {"app:v1"}}, [][]string{names(t, n, first), names(t, n, second)}); diff != "" {
		t.Errorf("after a name has moved (-want +got):\n%s", diff)
	}
	if err := n.deleteTemplate(first, "app:v2"); err != nil {
		t.Fatal(err)
	}
	if got := names(t, n, first); len(got) != 0 {
		t.Errorf("names after the last was taken away: %v", got)
	}
	if err := errors.Join(n.deleteTemplate(second, ""), n.deleteTemplate(second, ""), n.deleteTemplate(second, "app:v1")); err != nil {
		t.Errorf("deleting twice: %v", err)
	}
	if _, err := n.deps.Pool.OpenTemplate(second); sandbox.CodeOf(err) != sandbox.CodeTemplateNotFound {
		t.Errorf("after delete: %v", err)
	}
}

// A worker may have been taken over: nothing it says or makes is believed.
func TestLyingWorker(t *testing.T) {
	t.Parallel()
	many := make([]uint32, reservedUIDs)
	for i := range many {
		many[i] = uint32(i)
	}
	for name, change := range map[string]func(*scripted){
		"no owners":        func(s *scripted) { s.scan.UIDs = nil },
		"no root":          func(s *scripted) { s.scan.GIDs = []uint32{1} },
		"twice the same":   func(s *scripted) { s.scan.UIDs = []uint32{0, 5, 5} },
		"not sorted":       func(s *scripted) { s.scan.UIDs = []uint32{0, 5, 4} },
		"the id of nobody": func(s *scripted) { s.scan.UIDs = []uint32{0, 1<<32 - 1} },
		"too many":         func(s *scripted) { s.scan.UIDs = many },
		"no settings":      func(s *scripted) { s.settings = nil },
		"bad user":         func(s *scripted) { s.settings.User = "a b" },
		"bad workdir":      func(s *scripted) { s.settings.Workdir = "x" },
		"bad variable":     func(s *scripted) { s.settings.Env = map[string]string{"A=B": ""} },
		"odd size":         func(s *scripted) { s.size = 1<<20 + 1 },
		"tiny":             func(s *scripted) { s.size = 4096 },
		"fault":            func(s *scripted) { s.err = errors.New("killed") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, s := imports(t)
			change(s)
			if _, err := importBytes(t, n, "x:latest", "0123456789abcdef"); err == nil {
				t.Error("it was believed")
			}
			all, err := n.deps.Pool.ListTemplates()
			if err != nil || len(all) != 1 {
				t.Errorf("templates %v, %v", all, err)
			}
		})
	}
}

func TestResultOfAWorker(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		out, text string
		code      int
		want      sandbox.Code
	}{
		"good":          {`{"uids":[0]}`, "", 0, ""},
		"refused":       {`{"refused":"it is \u001b[31m bad"}`, "", 0, sandbox.CodeImageInvalid},
		"full":          {`{"fault":"write x: no space left on device"}`, "", 0, sandbox.CodePoolFull},
		"fault":         {`{"fault":"x"}`, "", 0, sandbox.CodeInternal},
		"no result":     {``, "panic: x", 2, sandbox.CodeInternal},
		"exit status":   {`{"uids":[0]}`, "", 1, sandbox.CodeInternal},
		"not an object": {`[]`, "", 0, sandbox.CodeInternal},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var files []*os.File
			for _, content := range []string{c.out, c.text} {
				f, err := confine.NewOutput(4096)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				if _, err := f.WriteString(content); err != nil {
					t.Fatal(err)
				}
				files = append(files, f)
			}
			_, err := readResult(confine.Status{Known: true, ExitCode: c.code}, files[0], files[1])
			if sandbox.CodeOf(err) != c.want {
				t.Errorf("%v (%s), want %s", err, sandbox.CodeOf(err), c.want)
			}
			if err != nil && bytes.ContainsRune([]byte(sandbox.AsError(err).Cause), 0x1b) {
				t.Errorf("an escape sequence passed: %q", err)
			}
		})
	}
}
