package pool

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Usage is the pool's space in bytes.
type Usage struct {
	TotalBytes uint64
	// FreeBytes is what can be written without an error: the pool's free space, and for a sparse loop image not more
	// than what is free behind it.
	FreeBytes uint64
}

// Usage reads the pool's space.
func (p *Pool) Usage(ctx context.Context) (Usage, error) {
	if err := ctx.Err(); err != nil {
		return Usage{}, err
	}
	total, free, err := space(p.cfg.Dir)
	if err != nil {
		return Usage{}, err
	}
	u := Usage{TotalBytes: total, FreeBytes: free}
	if p.cfg.Kind != KindLoopXFS {
		return u, nil
	}
	unbacked, err := unbackedBytes(p.cfg.ImageFile)
	if err != nil {
		return Usage{}, err
	}
	_, behind, err := space(p.cfg.ImageFile)
	if err != nil {
		return Usage{}, err
	}
	if behind < unbacked {
		u.FreeBytes = min(u.FreeBytes, behind)
	}
	return u, nil
}

func space(path string) (total, free uint64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, 0, fmt.Errorf("space of %s: %w", path, err)
	}
	block := uint64(st.Bsize)
	return st.Blocks * block, st.Bavail * block, nil
}

// unbackedBytes is how much of an image file has no blocks yet: 0 for a preallocated one.
func unbackedBytes(image string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(image, &st); err != nil {
		return 0, &os.PathError{Op: "stat", Path: image, Err: err}
	}
	if allocated := st.Blocks * 512; allocated < st.Size {
		return uint64(st.Size - allocated), nil
	}
	return 0, nil
}
