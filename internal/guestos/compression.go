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
const (
	magicGzip = "\x1f\x8b\x08"
	magicXZ   = "\xfd7zXZ\x00"
	magicZstd = "\x28\xb5\x2f\xfd"
	magicLZ4  = "\x02\x21\x4c\x18" // of the "legacy" frame, which only the kernel still writes
	magicELF  = "\x7fELF"
)

func startsWith(data []byte, magic string) bool { return bytes.HasPrefix(data, []byte(magic)) }

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
	case startsWith(head, magicGzip):
		return gzip.NewReader(buffered)
	case startsWith(head, magicXZ):
		decoded, err := xz.NewReader(buffered)
		if err != nil {
			return nil, fmt.Errorf("xz: %w", err)
		}
		return io.NopCloser(decoded), nil
	case startsWith(head, magicZstd):
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
