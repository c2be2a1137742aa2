package httpapi

import (
	"io"
	"net/http"
	"time"
)

// timedWriter gives each write of an answer a fresh deadline, so that a client which stops reading is cut off while a
// long answer to a reading one is not.
type timedWriter struct {
	http.ResponseWriter
	rc    *http.ResponseController
	wrote bool // the header has been sent, or an interim answer could not be told from it
}

func newTimedWriter(w http.ResponseWriter) *timedWriter {
	tw := &timedWriter{ResponseWriter: w, rc: http.NewResponseController(w)}
	tw.extend() // also replaces what the request before left on the connection
	return tw
}

// extend moves the deadline of the connection. Writers without deadlines (tests) have nothing to bound.
func (w *timedWriter) extend() { _ = w.rc.SetWriteDeadline(time.Now().Add(stall)) }

func (w *timedWriter) WriteHeader(status int) {
	if status >= 200 {
		w.wrote = true
	}
	w.extend()
	w.ResponseWriter.WriteHeader(status)
}

func (w *timedWriter) Write(p []byte) (int, error) {
	w.wrote = true
	w.extend()
	return w.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController reach Flush and the deadlines.
func (w *timedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// timedBody gives each read of a request's body a fresh deadline. The deadline is taken off after the last one: left
// on the connection, it would look like the client going away. A body that is never read keeps the deadline, for the
// server reads the rest of it after the handler.
type timedBody struct {
	io.ReadCloser
	rc    *http.ResponseController
	until time.Time // when the whole body has to be there; zero: no such time
}

func newTimedBody(body io.ReadCloser, rc *http.ResponseController) *timedBody {
	b := &timedBody{ReadCloser: body, rc: rc}
	b.extend()
	return b
}

func (b *timedBody) extend() {
	deadline := time.Now().Add(stall)
	if !b.until.IsZero() && b.until.Before(deadline) {
		deadline = b.until
	}
	_ = b.rc.SetReadDeadline(deadline)
}

func (b *timedBody) Read(p []byte) (int, error) {
	b.extend()
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		_ = b.rc.SetReadDeadline(time.Time{})
	}
	return n, err
}
