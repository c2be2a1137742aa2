package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// mount is one file system that any image needs.
type mount struct {
	source, target, kind string
	flags                uintptr
	data                 string
}

const (
	noExecNoDev = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	noSuidNoDev = unix.MS_NOSUID | unix.MS_NODEV
)

// mountEarly mounts, in the initramfs, what the next steps need. The mounts move along to the real root.
func (b *booter) mountEarly(context.Context) error {
	return mountAll([]mount{
		{"proc", "/proc", "proc", noExecNoDev, ""},
		{"sysfs", "/sys", "sysfs", noExecNoDev, ""},
		{"devtmpfs", "/dev", "devtmpfs", unix.MS_NOSUID, "mode=0755"},
	})
}

// mountLate mounts the rest in the real root.
func mountLate() error {
	if err := mountAll([]mount{
		{"devpts", "/dev/pts", "devpts", unix.MS_NOSUID | unix.MS_NOEXEC, "mode=0620,gid=5,ptmxmode=0666"},
		{"tmpfs", "/dev/shm", "tmpfs", noSuidNoDev, "mode=1777"},
		{"tmpfs", "/run", "tmpfs", noSuidNoDev, "mode=0755"},
		{"cgroup2", cgroupRoot, "cgroup2", noExecNoDev, ""},
	}); err != nil {
		return err
	}
	if err := makeTemporaryDir("/tmp"); err != nil {
		return err
	}
	return linkDescriptors()
}

func mountAll(mounts []mount) error {
	for _, m := range mounts {
		if err := makeMountPoint(m.target); err != nil {
			return err
		}
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	return nil
}

// makeMountPoint makes a directory that an image lacks. One that is there stays as it is.
func makeMountPoint(path string) error {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return fmt.Errorf("the image has no %s, and it cannot be made: %w", path, err)
	}
	return nil
}

// makeTemporaryDir makes a directory in which anybody may write, if the image has none.
func makeTemporaryDir(path string) error {
	err := os.Mkdir(path, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.Chmod(path, 0o777|fs.ModeSticky)
}

// linkDescriptors makes the names in /dev that the kernel leaves to user space and that shells rely on.
func linkDescriptors() error {
	for name, target := range map[string]string{
		"/dev/fd":     "/proc/self/fd",
		"/dev/stdin":  "/proc/self/fd/0",
		"/dev/stdout": "/proc/self/fd/1",
		"/dev/stderr": "/proc/self/fd/2",
	} {
		if err := os.Symlink(target, name); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}
