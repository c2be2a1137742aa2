package ociimage

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
)

// maxWindow bounds the memory that a zstd layer may ask for.
const maxWindow = 128 << 20

// eachEntry calls fn for every entry of a layer, whose content is read from its second argument. Digests are checked
// after the last entry.
func (a *archive) eachEntry(l layer, b *budget, fn func(h *tar.Header, content io.Reader) error) error {
	section, err := a.open(l.name)
	if err != nil {
		return err
	}
	packed, plain := sha256.New(), sha256.New()
	source := io.TeeReader(section, packed)
	unpacked, closeReader, err := decompress(bufio.NewReaderSize(source, 1<<16))
	if err != nil {
		return err
	}
	defer closeReader()
	counted := &layerReader{r: unpacked, b: b, limit: section.Size()*b.Ratio + b.Slack}
	stream := io.TeeReader(counted, plain)
	if err := eachHeader(stream, b, fn); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, stream); err != nil { // what follows the end of the tar belongs to the digest
		return layerError(err)
	}
	b.layers -= counted.n
	if err := checkDigest("a layer's content", l.diffID, plain.Sum(nil)); err != nil {
		return err
	}
	if l.digest == "" {
		return nil
	}
	if _, err := io.Copy(io.Discard, source); err != nil {
		return err
	}
	return checkDigest("a layer", l.digest, packed.Sum(nil))
}

func eachHeader(stream io.Reader, b *budget, fn func(h *tar.Header, content io.Reader) error) error {
	for tr := tar.NewReader(stream); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return layerError(err)
		}
		if err := b.entry(h.Name); err != nil {
			return err
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		if err := checkHeader(h); err != nil {
			return err
		}
		if err := fn(h, tr); err != nil {
			return err
		}
	}
}

// maxID is the largest uid and gid; the one after it means "unchanged" to the kernel.
const maxID = 1<<32 - 2

func checkHeader(h *tar.Header) error {
	if h.Uid < 0 || h.Uid > maxID || h.Gid < 0 || h.Gid > maxID {
		return refuse("%.200q has an owner that is none: %d:%d", h.Name, h.Uid, h.Gid)
	}
	if h.Size < 0 {
		return refuse("%.200q has a negative size", h.Name)
	}
	return nil
}

// decompress recognises gzip, zstd and plain tar by their first bytes.
func decompress(r *bufio.Reader) (io.Reader, func(), error) {
	head, err := r.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	switch {
	case hasPrefix(head, 0x1f, 0x8b):
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, nil, layerError(err)
		}
		return z, func() { _ = z.Close() }, nil // what it could say, reading has said
	case hasPrefix(head, 0x28, 0xb5, 0x2f, 0xfd):
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, nil, layerError(err)
		}
		return z, z.Close, nil
	}
	return r, func() {}, nil
}

// layerError is a fault of the layer unless it is known to be ours.
func layerError(err error) error {
	if _, ok := errors.AsType[*refusal](err); ok {
		return err
	}
	return refuse("a layer cannot be read: %v", err)
}

// copyContent writes the content of a file, counted: a sparse entry is larger than its layer.
func copyContent(w io.Writer, content io.Reader, size int64, b *budget) error {
	if size > b.left {
		return refuse("it holds more than %d bytes", b.Bytes)
	}
	n, err := io.Copy(writerOnly{w}, content)
	if err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, tar.ErrHeader) {
			return layerError(err)
		}
		if _, ok := errors.AsType[*refusal](err); ok {
			return err
		}
		return fmt.Errorf("write: %w", err)
	}
	if n != size {
		return refuse("a file has %d bytes instead of %d", n, size)
	}
	return b.spend(n)
}

// writerOnly hides ReadFrom.
type writerOnly struct{ io.Writer }
