package template

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/pool"
	"github.com/space-sandbox/space/internal/sandbox"
)

// tree makes a small root with what the finishing steps look for.
func tree(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "root")
	files := map[string]string{
		"etc/passwd":                     "root:x:0:0:root:/root:/bin/bash\nuser2:x:5:5::/:/bin/sh\n",
		"etc/skel/.profile":              "export X=1\n",
		"etc/machine-id":                 "0123456789abcdef0123456789abcdef\n",
		"etc/ssh/ssh_host_rsa_key":       "secret",
		"etc/resolv.conf":                "nameserver 192.0.2.1\n",
		"etc/apt/sources.list":           "deb http://user:password@mirror.test/ bookworm main\n",
		"var/lib/apt/lists/mirror_Index": "list",
		"tmp/rest":                       "rest",
		"usr/bin/tool":                   strings.Repeat("tool", 5000),
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func plainRecipe() Recipe {
	r := base()
	r.finish = nil
	return r
}

func TestFinishRemovesWhatIsOfOneMachine(t *testing.T) {
	t.Parallel()
	dir := tree(t)
	for range 2 { // finishing twice is the same as once
		if err := finishRoot(t.Context(), plainRecipe(), dir); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{
		"etc/machine-id": "", "etc/resolv.conf": "", "home/user/.profile": "export X=1\n",
		"etc/sudoers.d/user": "user ALL=(ALL:ALL) NOPASSWD: ALL\n",
		"etc/passwd":         "root:x:0:0:root:/root:/bin/bash\nuser2:x:5:5::/:/bin/sh\nuser:x:1000:1000::/home/user:/bin/bash\n",
	} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s is %q, %v", name, got, err)
		}
	}
	for _, name := range []string{"etc/ssh/ssh_host_rsa_key", "tmp/rest", "var/lib/apt/lists/mirror_Index"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there (%v)", name, err)
		}
	}
	if got, err := os.ReadFile(filepath.Join(dir, "etc/apt/sources.list")); err != nil || bytes.Contains(got, []byte("mirror.test")) {
		t.Errorf("the host's mirror is in the template: %s, %v", got, err)
	}
	info, err := os.Stat(filepath.Join(dir, "home/user"))
	if err != nil || info.Sys().(*syscall.Stat_t).Uid != userID {
		t.Errorf("home: %v, %v", info, err)
	}
}

func newImage(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestImageIsSoundSparseAndRepeatable(t *testing.T) {
	t.Parallel()
	dir := tree(t)
	unread(t, dir)
	var digests []string
	for range 2 {
		f := newImage(t)
		if err := MakeExt4(t.Context(), dir, imageID, 4, f); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.CommandContext(t.Context(), "e2fsck", "-fn", f.Name()).CombinedOutput(); err != nil {
			t.Errorf("e2fsck: %v\n%s", err, out)
		}
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			t.Fatal(err)
		}
		if st.Blocks*512 > st.Size/2 {
			t.Errorf("%d of %d bytes are allocated", st.Blocks*512, st.Size)
		}
		digest, err := pool.Digest(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, digest)
	}
	if digests[0] != digests[1] {
		t.Errorf("the same tree gave %v", digests)
	}
}

// unread gives everything below dir a time of access to come: then reading does not change it, and images hold it.
func unread(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Chtimes(path, time.Now().Add(time.Hour), time.Now()))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// What makes MakeExt4 try again: the words of mke2fs for an image that is too small.
func TestTooSmallImageIsRecognised(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "big"), bytes.Repeat([]byte("data"), 4*mib), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := measure(dir)
	if err != nil {
		t.Fatal(err)
	}
	err = runMke2fs(t.Context(), dir, imageID, 4, c, 12*mib, newImage(t))
	if child, ok := errors.AsType[*childError](err); !ok || !child.outOfSpace() {
		t.Errorf("error %v", err)
	}
	if err := MakeExt4(t.Context(), dir, imageID, 4, newImage(t)); err != nil {
		t.Error(err)
	}
}

func TestFullHostEndsTheImage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=65536"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil { // a child between fork and exec may hold a file
			t.Error(err)
		}
	})
	f, err := os.Create(filepath.Join(dir, "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := MakeExt4(t.Context(), tree(t), imageID, 4, f); err == nil {
		t.Error("an image was made on a full disk")
	}
}

func TestBuildNeedsSpace(t *testing.T) {
	t.Parallel()
	r := mini()
	r.space = 1 << 60
	_, err := (&Builder{WorkDir: t.TempDir()}).Build(t.Context(), r, nil, nil)
	if se := sandbox.AsError(err); se.Code != sandbox.CodeHostSetup || se.Remedy == "" {
		t.Errorf("error %v", err)
	}
}

// A canceled context ends the program and its children: the pipe they all hold is closed.
func TestCancelKillsTheWholeGroup(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := exec.CommandContext(ctx, "unshare", "--pid", "--fork", "--kill-child", "sh", "-c", "sleep 1000 & sleep 1000 & echo up; wait")
	cmd.ExtraFiles = []*os.File{w}
	err = runChild(cmd, func(line string) {
		if line == "up" {
			cancel()
		}
	})
	w.Close()
	if err == nil || !errors.Is(ctx.Err(), context.Canceled) {
		t.Errorf("error %v", err)
	}
	if _, err := io.ReadAll(r); err != nil { // returns when the last holder is gone
		t.Error(err)
	}
}

func TestFailedProgramIsQuoted(t *testing.T) {
	t.Parallel()
	err := runChild(exec.CommandContext(t.Context(), "sh", "-c", "echo first; echo reason >&2; exit 3"), nil)
	if err == nil || !strings.Contains(err.Error(), "reason") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("error %v", err)
	}
}
