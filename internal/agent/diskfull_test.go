package agent

import (
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/sandbox"
)

// TestReceiveOnAFullDisk writes to /dev/full, which is always full: it is the disk's error, not the body's.
func TestReceiveOnAFullDisk(t *testing.T) {
	t.Parallel()
	f, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	_, err = receive(f, sha256.New(), strings.NewReader(strings.Repeat("x", 1<<20)))
	if !errors.Is(err, unix.ENOSPC) || sandbox.CodeOf(fileError("/x", err)) != sandbox.CodeGuestDiskFull {
		t.Errorf("got %v", err)
	}
}

// TestFullFileSystem fills a small tmpfs through the route: the answer is guest_disk_full, the old file stays whole
// and nothing else is left. Mounting needs privileges; without them the mapping is tested alone.
func TestFullFileSystem(t *testing.T) {
	t.Parallel()
	if !privileged() {
		if got := fileError("/x", unix.ENOSPC); sandbox.CodeOf(got) != sandbox.CodeGuestDiskFull {
			t.Errorf("got %v", got)
		}
		return
	}
	f := newFixture(t, nil)
	dir := f.smallDisk("256k")
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	status, raw, _ := f.files("PUT", strings.NewReader(strings.Repeat("x", 1<<20)), "path", file)
	if status != 507 || !strings.Contains(string(raw), `"guest_disk_full"`) {
		t.Errorf("%d %s", status, raw)
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != "old" {
		t.Errorf("%q, %v", got, err)
	}
	noTraces(t, dir)
}

// smallDisk mounts a file system of this size; it needs privileges.
func (f *fixture) smallDisk(size string) string {
	f.t.Helper()
	dir := filepath.Join(f.dir, "small")
	if err := os.Mkdir(dir, 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			f.t.Error(err)
		}
	})
	return dir
}
