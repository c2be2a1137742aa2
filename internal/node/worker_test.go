package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/sandbox"
)

// taken stands for a worker that has been taken over: it tries what it must not be able to do and says what worked.
const taken = `#!/bin/sh
worked=
try() { name=$1; shift; "$@" >/dev/null 2>&1 && worked="$worked $name"; }
try shadow cat /etc/shadow
try root ls /
try beside ls "%[1]s"
try write sh -c 'echo x > "%[1]s/escape"'
try tmp sh -c 'echo x > /tmp/escape-%[2]d'
try signal kill -0 %[2]d
try mount mount -t tmpfs none /proc/self/fd/4
try device mknod /proc/self/fd/4/null c 1 3
try unmapped chown 77 /proc/self/fd/4
[ "$(grep -c : /proc/net/dev)" = 1 ] || worked="$worked network"
try archive sh -c 'echo x >&3'
# What it must be able to do.
echo content > /proc/self/fd/4/file && chown 1000:5 /proc/self/fd/4/file && chmod 4755 /proc/self/fd/4/file || worked="$worked not-unpack"
echo image 1<> /proc/self/fd/5 || worked="$worked not-image"
printf '{"refused":"worked:%%s"}' "$worked"
`

// script makes a program that the worker's uid may run.
func script(t *testing.T, text string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "worker")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "worker")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{dir, path} {
		if err := os.Chmod(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// job is a build in a pool of its own.
func job(t *testing.T) (WorkerJob, string) {
	t.Helper()
	w := newWorld(t)
	st, err := w.pool.NewStage("import")
	if err != nil {
		t.Fatal(err)
	}
	j := WorkerJob{Mode: "build", UIDs: []uint32{0, 1000}, GIDs: []uint32{0, 5}, FirstID: w.dir.Installation.UIDBase + workerSlot}
	archive, err := st.CreateArchive()
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	if j.Archive, err = os.Open(archive.Name()); err != nil {
		t.Fatal(err)
	}
	if j.Tree, err = st.MakeTree(j.FirstID, j.FirstID); err != nil {
		t.Fatal(err)
	}
	if j.Image, err = st.CreateRootfs(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Archive.Close(); j.Tree.Close(); j.Image.Close() })
	if err := j.Image.Chown(int(j.FirstID), int(j.FirstID)); err != nil {
		t.Fatal(err)
	}
	return j, w.dir.Path
}

func TestConfinedWorker(t *testing.T) {
	t.Parallel()
	j, beside := job(t)
	_, err := ConfinedWorker(script(t, fmt.Sprintf(taken, beside, os.Getpid())))(t.Context(), j)
	if sandbox.CodeOf(err) != sandbox.CodeImageInvalid || strings.TrimSpace(sandbox.AsError(err).Cause) != "worked:" {
		t.Errorf("it could: %v", err)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(int(j.Tree.Fd()), "file", &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		t.Fatal(err)
	}
	if st.Uid != j.FirstID+1 || st.Gid != j.FirstID+1 {
		t.Errorf("outside, its file belongs to %d:%d", st.Uid, st.Gid)
	}
}

// When the import is given up, the worker and all it started are gone.
func TestWorkerEndsWithItsContext(t *testing.T) {
	t.Parallel()
	j, _ := job(t)
	j.FirstID += 30 // nobody else's: its processes are counted
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err := ConfinedWorker(script(t, "#!/bin/sh\nsetsid sleep 1000 &\nsleep 1000\n"))(ctx, j)
	if sandbox.CodeOf(err) != sandbox.CodeInternal || ctx.Err() == nil {
		t.Errorf("after the deadline: %v", err)
	}
	procs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range procs {
		var st unix.Stat_t
		if unix.Stat(p, &st) == nil && st.Uid == j.FirstID {
			t.Errorf("%s still runs", p)
		}
	}
}
