package qemu

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/confine"
	"github.com/space-sandbox/space/internal/vmm"
)

// stderrBytes bounds what QEMU may write to its standard error over its life.
const stderrBytes = 16 << 10

// SocketName is the control socket's name in a machine's RunDir.
const SocketName = "qmp.sock"

// maxSocketPath is what fits into a socket address.
const maxSocketPath = 107

// launch is what a start needs: descriptors of our own, for the caller keeps the ones in the Spec.
type launch struct {
	files  []*os.File // become 3, 4, …
	fds    descriptors
	direct bool     // the disk is open for direct I/O
	stderr *os.File // bounded; QEMU's messages
	fsize  uint64   // no file needs to be larger
	socket string   // path of the control socket, bound but not listening yet
}

// prepare opens everything. On error nothing is left, on success close must be called.
func prepare(spec vmm.Spec) (_ *launch, err error) {
	l := &launch{socket: filepath.Join(spec.RunDir, SocketName), fsize: 1 << 20}
	defer func() {
		if err != nil {
			l.close()
			if l.fds.qmp != 0 {
				err = errors.Join(err, os.Remove(l.socket))
			}
		}
	}()
	if len(l.socket) > maxSocketPath {
		return nil, fmt.Errorf("the run directory's path is too long for a socket: %s", spec.RunDir)
	}
	if l.stderr, err = confine.NewOutput(stderrBytes); err != nil {
		return nil, err
	}
	if err := l.openKernel(spec); err != nil {
		return nil, err
	}
	if err := l.openMemory(spec); err != nil {
		return nil, err
	}
	if spec.Disk != nil {
		if err := l.openDisk(spec); err != nil {
			return nil, err
		}
	}
	if spec.Tap != nil {
		if l.fds.tap, err = l.add(dup(spec.Tap)); err != nil {
			return nil, fmt.Errorf("tap: %w", err)
		}
	}
	if l.fds.qmp, err = l.add(bindSocket(l.socket)); err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	return l, nil
}

func (l *launch) closeFiles() {
	for _, f := range l.files {
		f.Close()
	}
}

func (l *launch) close() {
	l.closeFiles()
	if l.stderr != nil {
		l.stderr.Close()
	}
}

func (l *launch) add(f *os.File, err error) (int, error) {
	if err != nil {
		return 0, err
	}
	l.files = append(l.files, f)
	return 2 + len(l.files), nil
}

func (l *launch) openKernel(spec vmm.Spec) error {
	magic := make([]byte, 4)
	if _, err := spec.Kernel.ReadAt(magic, 0); err != nil || !bytes.Equal(magic, []byte("\x7fELF")) {
		return errors.Join(errors.New("the guest kernel is not an uncompressed ELF file"), err)
	}
	var err error
	if l.fds.kernel, err = l.add(reopen(spec.Kernel, unix.O_RDONLY)); err != nil {
		return fmt.Errorf("kernel: %w", err)
	}
	// QEMU opens these two by path, so the machine's group must be able to; the rest of the world need not.
	if err := share(spec.Initrd, spec.GID, 0o440); err != nil {
		return fmt.Errorf("initrd: %w", err)
	}
	if l.fds.initrd, err = l.add(reopen(spec.Initrd, unix.O_RDONLY)); err != nil {
		return fmt.Errorf("initrd: %w", err)
	}
	return nil
}

func (l *launch) openMemory(spec vmm.Spec) error {
	info, err := spec.RAM.Stat()
	if err != nil {
		return fmt.Errorf("memory: %w", err)
	}
	if want := int64(spec.MemoryMiB) << 20; info.Size() != want {
		return fmt.Errorf("memory: the file has %d bytes, not %d", info.Size(), want)
	}
	if err := share(spec.RAM, spec.GID, 0o660); err != nil {
		return fmt.Errorf("memory: %w", err)
	}
	if l.fds.ram, err = l.add(reopen(spec.RAM, unix.O_RDWR)); err != nil {
		return fmt.Errorf("memory: %w", err)
	}
	l.fsize = max(l.fsize, uint64(info.Size()))
	return nil
}

// openDisk opens the disk for direct I/O where its file system can; some memory file systems cannot.
func (l *launch) openDisk(spec vmm.Spec) error {
	info, err := spec.Disk.Stat()
	if err != nil {
		return fmt.Errorf("disk: %w", err)
	}
	l.fsize = max(l.fsize, uint64(info.Size()))
	f, err := reopen(spec.Disk, unix.O_RDWR|unix.O_DIRECT)
	l.direct = err == nil
	if errors.Is(err, unix.EINVAL) {
		f, err = reopen(spec.Disk, unix.O_RDWR)
	}
	if l.fds.disk, err = l.add(f, err); err != nil {
		return fmt.Errorf("disk: %w", err)
	}
	return nil
}

// reopen opens the same file again, so that neither offset nor flags are shared with the caller's descriptor.
func reopen(f *os.File, flags int) (*os.File, error) {
	var fd int
	err := withFD(f, func(old int) error {
		var err error
		fd, err = unix.Open(fdPath(old), flags|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

func dup(f *os.File) (*os.File, error) {
	var fd int
	err := withFD(f, func(old int) error {
		var err error
		fd, err = unix.FcntlInt(uintptr(old), unix.F_DUPFD_CLOEXEC, 3)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// share lets the machine's group open a file that is this machine's own; its owner stays.
func share(f *os.File, gid uint32, mode uint32) error {
	return withFD(f, func(fd int) error {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		if needed := mode >> 3 & 7; st.Mode&needed == needed {
			return nil // open to all already, like a memory file
		}
		if st.Gid != gid {
			if err := unix.Fchown(fd, -1, int(gid)); err != nil {
				return err
			}
		}
		return unix.Fchmod(fd, mode)
	})
}

// withFD calls f with the descriptor and leaves the file's blocking mode alone, which Fd would not.
func withFD(file *os.File, f func(fd int) error) error {
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := conn.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		return err
	}
	return inner
}

// bindSocket makes the control socket without listening on it: QEMU does, and the kernel then tells every client
// QEMU's uid and pid as those of its peer.
func bindSocket(path string) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// messages reads what QEMU wrote to its standard error.
func messages(stderr *os.File) string {
	text, err := confine.ReadOutput(stderr)
	if err != nil {
		return ""
	}
	return strings.Join(strings.FieldsFunc(vmm.ConsoleText(text), func(r rune) bool { return r == '\n' }), "; ")
}
