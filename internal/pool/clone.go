package pool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// copyChunk is how much is copied between two looks at the context.
const copyChunk = 1 << 20

// Clone makes dst, an empty file, the same as src: extents are shared where the file system can, else the data is
// copied and holes stay holes. The file offsets of src are not used.
func (p *Pool) Clone(ctx context.Context, src, dst *os.File) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if p.cfg.Kind != KindCopy {
		err := reflink(src, dst)
		if err == nil || !cannotReflink(err) {
			return err
		}
	}
	return copySparse(ctx, src, dst)
}

func reflink(src, dst *os.File) error {
	if err := unix.IoctlFileClone(int(dst.Fd()), int(src.Fd())); err != nil {
		return fmt.Errorf("clone %s: %w", src.Name(), err)
	}
	return nil
}

// cannotReflink tells "this pair of files cannot share extents" from real failures.
func cannotReflink(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EXDEV) || errors.Is(err, unix.ENOTTY) ||
		errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS)
}

// copySparse copies the data ranges of src into dst.
func copySparse(ctx context.Context, src, dst *os.File) error {
	info, err := src.Stat()
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	if err := dst.Truncate(info.Size()); err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	buf := make([]byte, copyChunk)
	for start := int64(0); start < info.Size(); {
		data, hole, err := nextData(src, start, info.Size())
		if err != nil {
			return err
		}
		if err := copyRange(ctx, src, dst, data, hole, buf); err != nil {
			return err
		}
		start = hole
	}
	return nil
}

// nextData finds the next range of data at or after start; an empty range at the end when there is none.
func nextData(f *os.File, start, size int64) (data, hole int64, err error) {
	data, err = unix.Seek(int(f.Fd()), start, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		return size, size, nil
	case errors.Is(err, unix.EINVAL): // this file system has no holes
		return start, size, nil
	case err != nil:
		return 0, 0, fmt.Errorf("find data in %s: %w", f.Name(), err)
	}
	hole, err = unix.Seek(int(f.Fd()), data, unix.SEEK_HOLE)
	if err != nil {
		return 0, 0, fmt.Errorf("find hole in %s: %w", f.Name(), err)
	}
	return data, min(hole, size), nil
}

func copyRange(ctx context.Context, src, dst *os.File, from, to int64, buf []byte) error {
	for from < to {
		if err := ctx.Err(); err != nil {
			return err
		}
		part := buf[:min(int64(len(buf)), to-from)]
		n, err := src.ReadAt(part, from)
		if err != nil && (!errors.Is(err, io.EOF) || n == 0) {
			return fmt.Errorf("copy: %w", err)
		}
		if _, err := dst.WriteAt(part[:n], from); err != nil {
			return fmt.Errorf("copy: %w", err)
		}
		from += int64(n)
	}
	return nil
}

// Probe finds out, by trying, whether files in dir can share extents: KindReflink or KindCopy. It leaves nothing.
func Probe(dir string) (Kind, error) {
	src, err := os.CreateTemp(dir, ".probe-*")
	if err != nil {
		return "", fmt.Errorf("probe %s: %w", dir, err)
	}
	defer os.Remove(src.Name()) //nolint:errcheck // a probe of 64 KiB; the next setup finds the same name free
	defer src.Close()
	dst, err := os.CreateTemp(dir, ".probe-*")
	if err != nil {
		return "", fmt.Errorf("probe %s: %w", dir, err)
	}
	defer os.Remove(dst.Name()) //nolint:errcheck // the same
	defer dst.Close()
	if _, err := src.Write(make([]byte, 64<<10)); err != nil {
		return "", fmt.Errorf("probe %s: %w", dir, err)
	}
	err = reflink(src, dst)
	switch {
	case err == nil:
		return KindReflink, nil
	case cannotReflink(err):
		return KindCopy, nil
	}
	return "", fmt.Errorf("probe %s: %w", dir, err)
}
