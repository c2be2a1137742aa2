package up

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// terminal opens a pseudo-terminal as a login has it: for reading and writing.
func terminal(t *testing.T) *os.File {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tty.Close() })
	return tty
}

func TestTerminalsAreWriteOnly(t *testing.T) {
	t.Parallel()
	out, done, err := writeOnly(terminal(t))
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	if flags, err := unix.FcntlInt(out.Fd(), unix.F_GETFL, 0); err != nil || flags&unix.O_ACCMODE != unix.O_WRONLY {
		t.Errorf("flags %#x, %v", flags, err)
	}
	if _, err := out.WriteString("a line\n"); err != nil {
		t.Errorf("write: %v", err)
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if same, _, err := writeOnly(file); err != nil || same != file {
		t.Errorf("a file: %v %v", same, err)
	}
}

// Descriptors that whoever started us forgot to mark do not reach the parts.
func TestKeepOwn(t *testing.T) {
	t.Parallel()
	fd, err := unix.Open(os.DevNull, unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := keepOwn(); err != nil {
		t.Fatal(err)
	}
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("flags %#x, %v", flags, err)
	}
}
