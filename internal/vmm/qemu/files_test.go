package qemu

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/vmm"
)

// files makes the parts of a machine as far as prepare looks at them.
func files(t *testing.T) vmm.Spec {
	t.Helper()
	dir := t.TempDir()
	open := func(name, content string) *os.File {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	spec := vmm.Spec{ID: sandbox.NewID(), VCPUs: 1, MemoryMiB: 128, Kernel: open("kernel", "\x7fELF"), Initrd: open("initrd", "initrd"),
		RAM: open("ram", ""), Disk: open("disk", strings.Repeat("d", 8192)), RunDir: filepath.Join(dir, "run"), UID: 61240, GID: 61241}
	if err := spec.RAM.Truncate(128 << 20); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(spec.RunDir, 0o700); err != nil {
		t.Fatal(err)
	}
	return spec
}

func TestPrepareSharesOnlyWhatIsTheMachines(t *testing.T) {
	t.Parallel()
	spec := files(t)
	if _, err := spec.Initrd.Seek(3, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	l, err := prepare(spec)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	for name, want := range map[string]struct {
		file *os.File
		mode uint32
		gid  uint32
	}{"kernel": {spec.Kernel, 0o600, 0}, "initrd": {spec.Initrd, 0o440, 61241}, "ram": {spec.RAM, 0o660, 61241}, "disk": {spec.Disk, 0o600, 0}} {
		var st unix.Stat_t
		if err := unix.Fstat(int(want.file.Fd()), &st); err != nil {
			t.Fatal(err)
		}
		if st.Mode&0o777 != want.mode || st.Gid != want.gid || st.Uid != 0 {
			t.Errorf("%s: mode %o, owner %d:%d", name, st.Mode&0o777, st.Uid, st.Gid)
		}
	}
	// Offsets and flags are not shared with the caller's descriptors.
	if at, err := l.files[l.fds.initrd-3].Seek(0, io.SeekCurrent); err != nil || at != 0 {
		t.Errorf("offset %d, %v", at, err)
	}
	flags, err := unix.FcntlInt(spec.Disk.Fd(), unix.F_GETFL, 0)
	if err != nil || flags&unix.O_DIRECT != 0 {
		t.Errorf("the caller's disk has flags %o, %v", flags, err)
	}
	flags, err = unix.FcntlInt(l.files[l.fds.disk-3].Fd(), unix.F_GETFL, 0)
	if err != nil || flags&unix.O_DIRECT != 0 != l.direct {
		t.Errorf("the machine's disk has flags %o, direct is %t, %v", flags, l.direct, err)
	}
	if l.fsize != 128<<20 {
		t.Errorf("file size limit %d", l.fsize)
	}
}

func TestPrepareLeavesNothingOnError(t *testing.T) {
	t.Parallel()
	spec := files(t)
	other := filepath.Join(spec.RunDir, SocketName)
	if err := os.WriteFile(other, []byte("another's"), 0o600); err != nil {
		t.Fatal(err)
	}
	if l, err := prepare(spec); err == nil {
		l.close()
		t.Error("a name that is taken was taken again")
	}
	if data, err := os.ReadFile(other); err != nil || string(data) != "another's" {
		t.Errorf("what was there has been touched: %q %v", data, err)
	}
}
