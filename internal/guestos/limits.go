package guestos

import (
	"errors"
	"fmt"
	"io"
)

// Bounds on what is read from packages, in bytes. Debian's cloud kernel needs about a fifth of each.
const (
	maxPackageContent = 2 << 30   // all of data.tar, decompressed
	maxPackageEntries = 200_000   // files in a package
	maxPackageFile    = 128 << 20 // one file that is kept
	maxKernel         = 256 << 20 // vmlinux
	maxModule         = 32 << 20  // one module, decompressed
)

// ErrTooLarge is returned when something is larger than guestos accepts of it.
var ErrTooLarge = errors.New("larger than allowed")

// bounded reads r to its end, or fails when it has more than limit bytes.
func bounded(r io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("more than %d bytes: %w", limit, ErrTooLarge)
	}
	return data, nil
}

// boundedReader fails, instead of ending, once more than left bytes have been read.
type boundedReader struct {
	r    io.Reader
	left int64
}

func (b *boundedReader) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, ErrTooLarge
	}
	return n, err
}
