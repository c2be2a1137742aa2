package guestos

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// The first bytes of the formats that distributions use.
var (
	magicGzip = []byte{0x1f, 0x8b, 0x08}
	magicXZ   = []byte{0xfd, '7', 'z', 'X', 'Z', 0}
	magicZstd = []byte{0x28, 0xb5, 0x2f, 0xfd}
	// magicLZ4 is of the "legacy" frame, which only the kernel still writes.
	magicLZ4 = []byte{0x02, 0x21, 0x4c, 0x18}
	magicELF = []byte{0x7f, 'E', 'L', 'F'}
)

// maxWindow bounds the memory that a zstd frame may make its reader use.
const maxWindow = 128 << 20

// errUnknownFormat is returned for data whose first bytes are of no format that is understood.
var errUnknownFormat = errors.New("unknown compression format")

// decompressor recognises the format of r by its first bytes, not by any name. Data that starts like plain does is
// returned as it is (nil: nothing is).
func decompressor(r io.Reader, plain func(head []byte) bool) (io.ReadCloser, error) {
	buffered := bufio.NewReaderSize(r, 1<<16)
	head, err := buffered.Peek(512)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(head, magicGzip):
		return gzip.NewReader(buffered)
	case bytes.HasPrefix(head, magicXZ):
		decoded, err := xz.NewReader(buffered)
		if err != nil {
			return nil, fmt.Errorf("xz: %w", err)
		}
		return io.NopCloser(decoded), nil
	case bytes.HasPrefix(head, magicZstd):
		decoded, err := zstd.NewReader(buffered, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, fmt.Errorf("zstd: %w", err)
		}
		return decoded.IOReadCloser(), nil
	case plain != nil && plain(head):
		return io.NopCloser(buffered), nil
	default:
		return nil, errUnknownFormat
	}
}
