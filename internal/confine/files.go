package confine

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

type rawFile interface {
	Name() string
	SyscallConn() (syscall.RawConn, error)
}

// control calls f with the descriptor. Unlike Fd it leaves the file's blocking mode alone.
func control(file rawFile, f func(fd int) error) error {
	conn, err := file.SyscallConn()
	if err != nil {
		return fmt.Errorf("confine: %s: %w", file.Name(), err)
	}
	var inner error
	if err := conn.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		return fmt.Errorf("confine: %s: %w", file.Name(), err)
	}
	return inner
}

// dupFiles duplicates the child's descriptors 0, 1, 2, 3 …: the originals may be closed by their owner meanwhile.
func dupFiles(spec *Spec) (fds []uintptr, err error) {
	defer func() {
		if err != nil {
			closeAll(fds)
		}
	}()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("confine: %w", err)
	}
	defer null.Close()
	for _, f := range append([]*os.File{spec.Stdin, spec.Stdout, spec.Stderr}, spec.Files...) {
		if f == nil {
			if len(fds) > 2 {
				return fds, fmt.Errorf("confine: file %d is nil", len(fds))
			}
			f = null
		}
		err := control(f, func(fd int) error {
			dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
			if err != nil {
				return fmt.Errorf("confine: %s: %w", f.Name(), err)
			}
			fds = append(fds, uintptr(dup))
			return nil
		})
		if err != nil {
			return fds, err
		}
	}
	return fds, nil
}

func closeAll(fds []uintptr) {
	for _, fd := range fds {
		unix.Close(int(fd))
	}
}
