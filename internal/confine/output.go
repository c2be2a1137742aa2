package confine

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// NewOutput makes a file in memory that cannot grow over size bytes, for the messages of a process that is not
// trusted to keep them short and that may outlive us: what it writes beyond is refused. The caller closes it.
func NewOutput(size int64) (*os.File, error) {
	fd, err := unix.MemfdCreate("output", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("confine: memory file: %w", err)
	}
	f := os.NewFile(uintptr(fd), "output")
	if err := f.Truncate(size); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL); err != nil {
		return nil, errors.Join(fmt.Errorf("confine: sealing a memory file: %w", err), f.Close())
	}
	return f, nil
}

// ReadOutput returns what has been written to a file of NewOutput, up to the first zero byte.
func ReadOutput(f *os.File) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("confine: output: %w", err)
	}
	buf := make([]byte, info.Size())
	if _, err := f.ReadAt(buf, 0); err != nil {
		return nil, fmt.Errorf("confine: output: %w", err)
	}
	text, _, _ := bytes.Cut(buf, []byte{0})
	return text, nil
}
