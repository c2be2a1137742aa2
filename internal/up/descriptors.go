package up

import (
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// keepOwn marks every descriptor that whoever started us has left open: no part inherits one, however it is named.
func keepOwn() error {
	if err := unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("descriptors: %w", err)
	}
	return nil
}

// writeOnly opens a terminal anew for writing alone: a login's terminal is open for both, and a part that was taken
// over could read what is typed there. Everything else is passed on as it is. Call done when the part has been started.
func writeOnly(f *os.File) (out *os.File, done func(), err error) {
	if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err != nil {
		return f, func() {}, nil
	}
	out, err = os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), os.O_WRONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("terminal: %w", err)
	}
	return out, func() { out.Close() }, nil
}
