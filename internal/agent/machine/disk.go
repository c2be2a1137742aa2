package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	diskPath = "/dev/vda"
	// newRoot is where the disk is mounted before it becomes the root.
	newRoot = "/newroot"
	// diskDeadline is how long the disk may take to appear once its driver is loaded.
	diskDeadline = 20 * time.Second
)

// mountDisk waits for the root disk and mounts it; the kernel brings a file system that was not unmounted into order by its
// journal. Where that fails, the disk is mounted as it is and read-only: it may be the only copy of what the sandbox had,
// which can be fetched then, and nothing here repairs what it might destroy.
func (b *booter) mountDisk(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, diskDeadline)
	defer cancel()
	if err := waitForFile(ctx, diskPath); err != nil {
		return err
	}
	err := unix.Mount(diskPath, newRoot, "ext4", 0, "")
	if err == nil {
		return nil
	}
	if roErr := unix.Mount(diskPath, newRoot, "ext4", unix.MS_RDONLY, "noload"); roErr != nil {
		return fmt.Errorf("mount %s as ext4: %w; read-only: %w", diskPath, err, roErr)
	}
	b.readOnly = true
	b.log.Error("the disk is damaged and mounted read-only: fetch what is needed, nothing can be written", "error", err)
	return nil
}

// waitForFile returns when path exists, told by inotify.
func waitForFile(ctx context.Context, path string) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("inotify: %w", err)
	}
	events := os.NewFile(uintptr(fd), "inotify")
	defer events.Close()
	if _, err := unix.InotifyAddWatch(fd, filepath.Dir(path), unix.IN_CREATE|unix.IN_MOVED_TO); err != nil {
		return fmt.Errorf("watch %s: %w", filepath.Dir(path), err)
	}
	if deadline, ok := ctx.Deadline(); ok {
		if err := events.SetReadDeadline(deadline); err != nil {
			return fmt.Errorf("watch %s: %w", filepath.Dir(path), err)
		}
	}
	buf := make([]byte, 4096)
	for {
		_, err := os.Lstat(path)
		if err == nil {
			return nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if _, err := events.Read(buf); err != nil {
			return fmt.Errorf("%s did not appear: %w", path, err)
		}
	}
}
