package control_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
)

// direct carries requests to a handler in this process, without a socket: all that waits in it waits on channels, so that
// a bubble of testing/synctest sees it. It implements http.RoundTripper.
type direct struct {
	handler http.Handler

	mu   sync.Mutex
	life context.Context // nil: nobody answers
	end  context.CancelFunc
}

func newDirect(h http.Handler) *direct {
	d := &direct{handler: h}
	d.start()
	return d
}

func (d *direct) start() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.life, d.end = context.WithCancel(context.Background())
}

// stop breaks every connection, and refuses new ones.
func (d *direct) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.end()
	d.life = nil
}

// RoundTrip implements http.RoundTripper.
func (d *direct) RoundTrip(req *http.Request) (*http.Response, error) {
	d.mu.Lock()
	life := d.life
	d.mu.Unlock()
	if life == nil {
		return nil, errors.New("connection refused")
	}
	ctx, cancel := context.WithCancel(req.Context())
	r, w := io.Pipe()
	broken := context.AfterFunc(life, func() {
		cancel()
		w.CloseWithError(io.ErrUnexpectedEOF)
	})
	answer := &answer{header: http.Header{}, body: w, begun: make(chan struct{})}
	go func() {
		defer cancel()
		defer broken()
		d.handler.ServeHTTP(answer, req.WithContext(ctx))
		answer.WriteHeader(http.StatusOK)
		w.Close()
	}()
	select {
	case <-answer.begun:
	case <-ctx.Done():
		r.Close()
		if err := req.Context().Err(); err != nil {
			return nil, err
		}
		return nil, io.ErrUnexpectedEOF
	}
	return &http.Response{StatusCode: answer.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: answer.sent, ContentLength: -1,
		Body: &answerBody{r, cancel}, Request: req, Trailer: http.Header{}}, nil
}

// answer is the handler's side of a response.
type answer struct {
	header, sent http.Header
	status       int
	body         *io.PipeWriter
	begun        chan struct{}
	once         sync.Once
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) {
	a.once.Do(func() {
		a.status, a.sent = status, a.header.Clone()
		close(a.begun)
	})
}

func (a *answer) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(p)
}

// Flush implements http.Flusher.
func (a *answer) Flush() { a.WriteHeader(http.StatusOK) }

// answerBody tells the handler when nobody reads any more.
type answerBody struct {
	*io.PipeReader
	cancel context.CancelFunc
}

func (b *answerBody) Close() error {
	b.cancel()
	return b.PipeReader.Close()
}
