package pool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/datadir"
	"github.com/space-sandbox/space/internal/sandbox"
)

// mountFlags: what guests write is data, never a program, a device or a privilege of the host.
const mountFlags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOATIME

// OpenDir opens the pool of an installation.
func OpenDir(dir *datadir.Dir) (*Pool, error) {
	kind, err := ParseKind(dir.Installation.PoolKind)
	if err != nil {
		return nil, err
	}
	cfg := Config{Dir: dir.PoolDir(), Kind: kind}
	if kind == KindLoopXFS {
		cfg.ImageFile = dir.PoolImage()
	}
	return Open(cfg)
}

// Ensure mounts an installation's loop-xfs pool when it is not mounted, for example after a reboot; other kinds need
// nothing. Idempotent; several processes may call it at once.
func Ensure(ctx context.Context, dir *datadir.Dir) error {
	if dir.Installation.PoolKind != string(KindLoopXFS) {
		return nil
	}
	return Mount(ctx, dir.PoolImage(), dir.PoolDir())
}

// Unmount ends an installation's loop-xfs pool: it is unmounted and its loop device is free. Idempotent. A pool in use
// is a host_setup error.
func Unmount(ctx context.Context, dir *datadir.Dir) error {
	if dir.Installation.PoolKind != string(KindLoopXFS) {
		return nil
	}
	return UnmountImage(ctx, dir.PoolImage(), dir.PoolDir())
}

// Mount mounts image on point. Mounting what is mounted succeeds. On failure no loop device and no mount is left.
func Mount(ctx context.Context, image, point string) error {
	f, err := lockImage(ctx, image)
	if err != nil {
		return err
	}
	defer f.Close()
	mounted, err := mountedFrom(point, image)
	if err != nil || mounted {
		return err
	}
	dev, err := findLoop(f)
	if err != nil {
		return err
	}
	if dev == nil {
		if dev, err = attachImage(image); err != nil {
			return hostError("the pool cannot be mounted", err, "check that the loop module is loaded and /dev/loop-control exists")
		}
	}
	defer dev.Close()
	if err := unix.Mount(dev.Name(), point, "xfs", mountFlags, mountOptions(image)); err != nil {
		err = fmt.Errorf("mount %s on %s: %w", dev.Name(), point, err)
		return hostError("the pool cannot be mounted", err, "check that the kernel has xfs; dmesg says more")
	}
	return nil
}

// attachImage opens the image once more: the kernel keeps the descriptor that it is given, and with it a lock on it.
func attachImage(image string) (*os.File, error) {
	f, err := os.OpenFile(image, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("pool image: %w", err)
	}
	defer f.Close()
	return attachLoop(f)
}

// mountOptions gives freed space of a sparse image back to the host; a preallocated one must keep its blocks.
func mountOptions(image string) string {
	if unbacked, err := unbackedBytes(image); err == nil && unbacked > 0 {
		return "discard"
	}
	return ""
}

// UnmountImage unmounts image from point; the loop device frees itself with the mount.
func UnmountImage(ctx context.Context, image, point string) error {
	f, err := lockImage(ctx, image)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	for attempt := 0; ; attempt++ {
		mounted, err := mountedFrom(point, image)
		if err != nil || !mounted {
			return err
		}
		err = unix.Unmount(point, unix.UMOUNT_NOFOLLOW)
		if err == nil {
			continue // there may be a second mount on top of the first
		}
		if !errors.Is(err, unix.EBUSY) || attempt >= busyAttempts {
			err = fmt.Errorf("unmount %s: %w", point, err)
			return hostError("the pool cannot be unmounted", err, "end what uses it: sandboxes, or a shell in that directory")
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(busyPause):
		}
	}
}

// A process that just ended, or one between fork and exec, holds files for a moment more; no event tells when it is over.
const (
	busyAttempts = 50
	busyPause    = 20 * time.Millisecond
)

// lockImage opens the image under a lock that setup, up and down share while they look and then mount.
func lockImage(ctx context.Context, image string) (*os.File, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(image, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, missingImage(image, err)
	}
	if err != nil {
		return nil, fmt.Errorf("pool image: %w", err)
	}
	// Held for the milliseconds of a mount only, so waiting needs no deadline of its own.
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock pool image: %w", err), f.Close())
	}
	return f, nil
}

func missingImage(image string, err error) error {
	return &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "the image of the pool is missing", Cause: image + " does not exist",
		Remedy: "restore it, or make an empty pool: space setup --data-dir " + filepath.Dir(image), Err: err}
}

// mountedFrom reports whether point is the mount of a loop device on image.
func mountedFrom(point, image string) (bool, error) {
	var at, above, backing unix.Stat_t
	if err := unix.Stat(point, &at); err != nil {
		return false, &os.PathError{Op: "stat", Path: point, Err: err}
	}
	if err := unix.Stat(filepath.Dir(point), &above); err != nil {
		return false, &os.PathError{Op: "stat", Path: filepath.Dir(point), Err: err}
	}
	if at.Dev == above.Dev {
		return false, nil
	}
	if err := unix.Stat(image, &backing); err != nil {
		return false, &os.PathError{Op: "stat", Path: image, Err: err}
	}
	link, err := os.Readlink(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(at.Dev), unix.Minor(at.Dev)))
	if err != nil {
		return false, notOurs(point, image)
	}
	dev, err := os.Open("/dev/" + filepath.Base(link))
	if err != nil {
		return false, notOurs(point, image)
	}
	defer dev.Close()
	info, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
	if err != nil || info.Device != backing.Dev || info.Inode != backing.Ino {
		return false, notOurs(point, image)
	}
	return true, nil
}

func notOurs(point, image string) error {
	return &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "another file system is mounted on the pool directory",
		Cause: point + " is a mount, but not of " + image, Remedy: "unmount it, then try again"}
}

func hostError(message string, err error, remedy string) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	return &sandbox.Error{Code: sandbox.CodeHostSetup, Message: message, Cause: err.Error(), Remedy: remedy, Err: err}
}

// CheckOrphan fails when point is the mount of an image that has been removed: what is written there is lost with the
// mount.
func CheckOrphan(point string) error {
	orphan, err := orphaned(point)
	if err != nil || !orphan {
		return err
	}
	return &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "the pool of an earlier installation is still mounted",
		Cause: point + " is the mount of a file that has been removed", Remedy: "run: space down --all --data-dir " + filepath.Dir(point)}
}

// UnmountOrphan unmounts from point an image that has been removed, also while something still uses it. Idempotent.
func UnmountOrphan(point string) error {
	for {
		orphan, err := orphaned(point)
		if err != nil || !orphan {
			return err
		}
		if err := unix.Unmount(point, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", point, err)
		}
	}
}

// orphaned reports whether point is the mount of a loop device whose file has no name any more.
func orphaned(point string) (bool, error) {
	var at, above unix.Stat_t
	if err := unix.Stat(point, &at); errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return false, nil
	} else if err != nil {
		return false, &os.PathError{Op: "stat", Path: point, Err: err}
	}
	if err := unix.Stat(filepath.Dir(point), &above); err != nil {
		return false, &os.PathError{Op: "stat", Path: filepath.Dir(point), Err: err}
	}
	if at.Dev == above.Dev {
		return false, nil
	}
	file, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/loop/backing_file", unix.Major(at.Dev), unix.Minor(at.Dev)))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil // no loop device
	}
	if err != nil {
		return false, fmt.Errorf("loop device of %s: %w", point, err)
	}
	return strings.HasSuffix(strings.TrimSpace(string(file)), " (deleted)"), nil
}
