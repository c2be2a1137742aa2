package machine

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// switchRoot makes the disk the root of this process and of all it starts. The agent goes on as it is: its binary
// is static, and its pages stay in memory although the file is removed here.
func (b *booter) switchRoot(context.Context) error {
	for _, dir := range []string{"/dev", "/proc", "/sys"} {
		target := newRoot + dir
		if err := makeMountPoint(target); err != nil {
			return err
		}
		if err := unix.Mount(dir, target, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("move %s: %w", dir, err)
		}
	}
	if err := os.Remove("/init"); err != nil {
		return err
	}
	if err := os.Chdir(newRoot); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move the root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("chroot: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	return mountLate()
}
