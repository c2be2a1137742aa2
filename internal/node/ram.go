package node

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// newRAM makes the memory of a guest: a memfd of exactly that size. Its size is sealed, so that a taken-over VMM
// cannot shrink it under another mapping.
func newRAM(mib int) (*os.File, error) {
	fd, err := unix.MemfdCreate("space-ram", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("guest memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), "space-ram")
	if err := f.Truncate(int64(mib) << 20); err != nil {
		return nil, errors.Join(fmt.Errorf("guest memory: %w", err), f.Close())
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return nil, errors.Join(fmt.Errorf("seal guest memory: %w", err), f.Close())
	}
	return f, nil
}
