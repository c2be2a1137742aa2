package control

import (
	"io"
	"sync/atomic"
)

// countedBody is a request's body that knows how much of it was read.
type countedBody struct {
	body io.ReadCloser
	n    atomic.Int64
}

// Read implements io.Reader.
func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.body.Read(p)
	b.n.Add(int64(n))
	return n, err
}

// Close implements io.Closer.
func (b *countedBody) Close() error { return b.body.Close() }
