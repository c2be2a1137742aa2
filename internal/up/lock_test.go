package up

import (
	"io/fs"
	"os"
	"testing"

	"github.com/space-sandbox/space/internal/datadir"
)

// Whoever can open the lock file can take the lock, so others than root cannot; a file that all could
// read is corrected.
func TestLockIsRootsAlone(t *testing.T) {
	t.Parallel()
	for _, before := range []fs.FileMode{0, 0o644, 0o666} {
		d := &datadir.Dir{Path: t.TempDir()}
		if before != 0 {
			if err := os.WriteFile(d.LockFile(), []byte("{}\n"), before); err != nil {
				t.Fatal(err)
			}
		}
		l, err := acquireLock(d)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Lstat(d.LockFile())
		if err != nil || info.Mode() != 0o600 {
			t.Errorf("from %v: %v %v", before, info.Mode(), err)
		}
		if h, running, err := Running(d); err != nil || !running || h.PID != os.Getpid() {
			t.Errorf("Running: %+v %v %v", h, running, err)
		}
		l.release()
		if _, running, err := Running(d); err != nil || running {
			t.Errorf("after release: %v %v", running, err)
		}
	}
}

// A lock file that is a link would let its target be emptied.
func TestLockIsNoLink(t *testing.T) {
	t.Parallel()
	d := &datadir.Dir{Path: t.TempDir()}
	target := d.Path + "/precious"
	if err := os.WriteFile(target, []byte("keep"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, d.LockFile()); err != nil {
		t.Fatal(err)
	}
	if l, err := acquireLock(d); err == nil {
		l.release()
		t.Error("followed a link")
	}
	if data, err := os.ReadFile(target); err != nil || string(data) != "keep" {
		t.Errorf("%q %v", data, err)
	}
}
