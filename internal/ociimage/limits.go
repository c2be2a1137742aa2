package ociimage

import (
	"fmt"
	"io"
)

// Limits bound what one image may cost.
type Limits struct {
	Layers   int
	Entries  int   // files of all layers
	Names    int64 // bytes of all names
	Bytes    int64 // of all layers, decompressed, and of all file contents
	Ratio    int64 // decompressed bytes for each compressed one, beyond Slack
	Slack    int64
	Document int64 // bytes of a manifest, index or configuration
	Owners   int   // different uids, and different gids
}

// DefaultLimits are those of the worker.
func DefaultLimits() Limits {
	return Limits{Layers: 128, Entries: 1_000_000, Names: 128 << 20, Bytes: 16 << 30, Ratio: 200, Slack: 64 << 20,
		Document: 4 << 20, Owners: 62}
}

// refusal is a fault of the image: its text is shown to who imported it.
type refusal struct{ text string }

func (r *refusal) Error() string { return r.text }

func refuse(format string, args ...any) error { return &refusal{fmt.Sprintf(format, args...)} }

// budget counts down over all layers of an image.
type budget struct {
	Limits
	left    int64 // bytes of file contents
	layers  int64 // bytes of decompressed layers
	entries int
	names   int64
}

func newBudget(l Limits) *budget { return &budget{Limits: l, left: l.Bytes, layers: l.Bytes} }

func (b *budget) spend(n int64) error {
	if b.left -= n; b.left < 0 {
		return refuse("it holds more than %d bytes", b.Bytes)
	}
	return nil
}

func (b *budget) entry(name string) error {
	b.entries++
	b.names += int64(len(name))
	if b.entries > b.Entries {
		return refuse("it holds more than %d files", b.Entries)
	}
	if b.names > b.Names {
		return refuse("its file names have more than %d bytes", b.Names)
	}
	return nil
}

// layerReader counts what one layer decompresses to, against the whole and against its compressed size.
type layerReader struct {
	r     io.Reader
	b     *budget
	limit int64 // by the ratio
	n     int64
}

func (l *layerReader) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	l.n += int64(n)
	if l.n > l.limit {
		return n, refuse("a layer decompresses to more than %d times its size", l.b.Ratio)
	}
	if l.n > l.b.layers {
		return n, refuse("a layer holds more than %d bytes", l.b.Bytes)
	}
	return n, err
}
