package pool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/hostprog"
)

// Sizes of loop images in bytes.
const (
	// MinImageBytes is what mkfs.xfs accepts, and a little.
	MinImageBytes = 320 << 20
	// MaxDefaultImageBytes is where the default size stops growing with the disk.
	MaxDefaultImageBytes = 64 << 30
)

// DefaultImageBytes is the size of a loop image when nobody chose one: 60 % of the free space, at most 64 GiB.
func DefaultImageBytes(freeBytes uint64) int64 {
	const alignment = 1 << 20
	return int64(min(freeBytes/10*6, MaxDefaultImageBytes)) / alignment * alignment
}

// FreeBytes is the free space of the file system that path lies on.
func FreeBytes(path string) (uint64, error) {
	_, free, err := space(path)
	return free, err
}

// MakeImage makes an XFS image with reflinks at path: preallocated, or sparse. It appears in one step and complete; an
// image that exists already is an error that wraps fs.ErrExist. Needs mkfs.xfs.
func MakeImage(ctx context.Context, path string, sizeBytes int64, sparse bool) (err error) {
	if sizeBytes < MinImageBytes {
		return fmt.Errorf("pool image: %d bytes are too few for XFS, at least %d are needed", sizeBytes, int64(MinImageBytes))
	}
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("pool image %s: %w", path, fs.ErrExist)
	}
	partial := path + ".new"
	// A leftover of a run that was cut off: the name is ours alone, and callers hold setup's lock.
	if err := os.Remove(partial); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("pool image: %w", err)
	}
	f, err := os.OpenFile(partial, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fullError(fmt.Errorf("pool image: %w", err))
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if err != nil {
			err = errors.Join(err, os.Remove(partial))
		}
	}()
	if err := allocate(f, sizeBytes, sparse); err != nil {
		return err
	}
	if err := makeXFS(ctx, partial); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return fullError(fmt.Errorf("pool image: %w", err))
	}
	if err := os.Rename(partial, path); err != nil {
		return fmt.Errorf("pool image: %w", err)
	}
	return syncPath(filepath.Dir(path))
}

func allocate(f *os.File, sizeBytes int64, sparse bool) error {
	if err := f.Truncate(sizeBytes); err != nil {
		return fullError(fmt.Errorf("pool image: %w", err))
	}
	if sparse {
		return nil
	}
	if err := unix.Fallocate(int(f.Fd()), 0, 0, sizeBytes); err != nil {
		return fullError(fmt.Errorf("pool image: reserve %d bytes: %w", sizeBytes, err))
	}
	return nil
}

// makeXFS runs mkfs.xfs; -K leaves preallocated blocks allocated.
func makeXFS(ctx context.Context, image string) error {
	cmd := exec.CommandContext(ctx, hostprog.Path("mkfs.xfs"), "-q", "-f", "-K", "-m", "reflink=1,crc=1", image)
	cmd.Env = hostprog.Env("LC_ALL=C")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.CombinedOutput()
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return fullError(fmt.Errorf("mkfs.xfs: %w: %s", err, bytes.TrimSpace(out[:min(len(out), 2048)])))
	}
	return nil
}

func syncPath(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	return nil
}
