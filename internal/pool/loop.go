package pool

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// loopAttempts bounds the race for a free loop device: others on the host take them too.
const loopAttempts = 64

// attachLoop binds image to a free loop device with direct I/O. The device frees itself when its last user (this
// descriptor, then the mount) is gone, so no crash can leave it behind.
func attachLoop(image *os.File) (*os.File, error) {
	ctl, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("loop devices are not available: %w", err)
	}
	defer ctl.Close()
	for range loopAttempts {
		n, err := unix.IoctlRetInt(int(ctl.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find a free loop device: %w", err)
		}
		dev, err := configureLoop(fmt.Sprintf("/dev/loop%d", n), image)
		if errors.Is(err, unix.EBUSY) {
			continue // somebody was faster
		}
		return dev, err
	}
	return nil, fmt.Errorf("no loop device was free in %d attempts: %w", loopAttempts, unix.EBUSY)
}

func configureLoop(path string, image *os.File) (*os.File, error) {
	dev, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open loop device: %w", err)
	}
	cfg := unix.LoopConfig{Fd: uint32(image.Fd())}
	cfg.Info.Flags = unix.LO_FLAGS_AUTOCLEAR | unix.LO_FLAGS_DIRECT_IO
	copy(cfg.Info.File_name[:len(cfg.Info.File_name)-1], image.Name())
	if err := unix.IoctlLoopConfigure(int(dev.Fd()), &cfg); err != nil {
		return nil, errors.Join(fmt.Errorf("configure %s: %w", path, err), dev.Close())
	}
	return dev, nil
}

// findLoop returns the loop device that image is attached to already, nil when there is none. Two devices on one image
// would destroy it.
func findLoop(image *os.File) (*os.File, error) {
	var want unix.Stat_t
	if err := unix.Fstat(int(image.Fd()), &want); err != nil {
		return nil, fmt.Errorf("stat image: %w", err)
	}
	backed, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, fmt.Errorf("list loop devices: %w", err)
	}
	for _, file := range backed {
		name := filepath.Base(filepath.Dir(filepath.Dir(file)))
		dev, err := os.OpenFile("/dev/"+name, os.O_RDWR, 0)
		if err != nil {
			continue // it went away
		}
		info, statusErr := unix.IoctlLoopGetStatus64(int(dev.Fd()))
		if statusErr == nil && info.Device == want.Dev && info.Inode == want.Ino {
			return dev, nil
		}
		if err := dev.Close(); err != nil {
			return nil, fmt.Errorf("close loop device: %w", err)
		}
	}
	return nil, nil
}
