package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/problem"
	"github.com/space-sandbox/space/internal/sandbox"
)

// The raw routes carry bodies that control passes on unread:
//
//	GET, PUT, DELETE /raw/sandboxes/{id}/files                              see rawfiles.go
//	*    /raw/sandboxes/{id}/files/{action}
//	POST /raw/sandboxes/{id}/processes/{process}/stdin?offset=&eof=         answers stdin_bytes
//
// Nothing is kept of a body but what is under way. Errors have the problem form.

const (
	copyBuffer = 64 << 10
	stdinChunk = 256 << 10
	// stallTimeout ends a transfer in which nothing moves. A process that does not read its input is no such case.
	stallTimeout = 5 * time.Minute
)

type rawHandler struct{ g *Gateway }

// ServeHTTP implements http.Handler.
func (h *rawHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := h.serve(w, r); err != nil {
		p := problem.From(err, problem.Options{})
		if p.Code == string(sandbox.CodeStdinOffset) {
			p.StdinBytes = acceptedStdin(err)
		}
		if p.Status >= http.StatusInternalServerError {
			h.g.deps.Logger.Warn("raw request failed", "method", r.Method, "path", r.URL.Path, "code", p.Code, "error", err)
		}
		p.Write(w)
	}
}

// serve answers a request; an error means that nothing has been written yet.
func (h *rawHandler) serve(w http.ResponseWriter, r *http.Request) error {
	part := strings.Split(strings.TrimPrefix(r.URL.Path, "/raw/sandboxes/"), "/")
	var do func(*transfer, http.ResponseWriter, *http.Request) error
	switch {
	case (len(part) == 2 || len(part) == 3) && part[1] == "files":
		route, err := fileRouteOf(r.Method, part[2:])
		if err != nil {
			return err
		}
		do = route.serve
	case len(part) == 4 && part[1] == "processes" && part[3] == "stdin":
		if r.Method != http.MethodPost {
			return noMethod(r.Method)
		}
		do = func(t *transfer, w http.ResponseWriter, r *http.Request) error { return t.stdin(w, r, part[2]) }
	default:
		return sandbox.Errorf(sandbox.CodeNotFound, "no such route")
	}
	rt, err := h.g.lookup(part[0])
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	defer context.AfterFunc(rt.life, func() { cancel(context.Cause(rt.life)) })()
	// A body that waits for its client does not see the end of ctx, and the connection into the guest waits for the body.
	defer atEnd(ctx, func() { _ = http.NewResponseController(w).SetReadDeadline(time.Unix(1, 0)) })()
	t := &transfer{ctx: ctx, rt: rt, cancel: cancel}
	err = do(t, w, r)
	switch {
	case err == nil:
		return nil
	case errors.Is(context.Cause(ctx), errStalled):
		return &sandbox.Error{Code: sandbox.CodeDeadline, Message: "the transfer was ended", Cause: errStalled.Error(), Err: err}
	}
	return (&service{g: h.g}).over(rt, err)
}

// atEnd calls f when ctx ends, in a goroutine of its own, unless stop is called before. Once stop has returned f does not
// run: a response must not be touched after its handler.
func atEnd(ctx context.Context, f func()) (stop func()) {
	done := make(chan struct{})
	unset := context.AfterFunc(ctx, func() {
		defer close(done)
		f()
	})
	return func() {
		if !unset() {
			<-done
		}
	}
}

func noMethod(method string) error {
	return sandbox.Errorf(sandbox.CodeMethodNotAllowed, "the route exists, the method %.20q does not", method)
}

// transfer is one raw request.
type transfer struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	rt     reached
}

var errStalled = errors.New("nothing moved for too long")

// guard ends the transfer when moved has not been called for stallTimeout.
func (t *transfer) guard() (moved, stop func()) {
	timer := time.AfterFunc(stallTimeout, func() { t.cancel(errStalled) })
	return func() { timer.Reset(stallTimeout) }, func() { timer.Stop() }
}

// stdin passes the body to a process in the order of its bytes. When offset is given, every piece is checked against
// it, so that no other writer's bytes come in between.
func (t *transfer) stdin(w http.ResponseWriter, r *http.Request, process string) error {
	id, err := sandbox.ParseProcessID(process)
	if err != nil {
		return err
	}
	q, err := rawQuery(r, "offset", "eof")
	if err != nil {
		return err
	}
	next, eof, err := stdinQuery(q)
	if err != nil {
		return err
	}
	var taken uint64
	buf := make([]byte, stdinChunk)
	for more := true; more; {
		n, err := io.ReadFull(r.Body, buf)
		if more = err == nil; !more && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return &sandbox.Error{Code: sandbox.CodeInvalidArgument, Message: "the body was cut off", Err: err}
		}
		if n == 0 && !eof && taken > 0 {
			break // the body's length was a multiple of the buffer's
		}
		req := &agentv1.WriteStdinRequest{ProcessId: string(id), Data: buf[:n], Eof: eof && !more, Offset: next}
		if taken, err = t.rt.guest.WriteStdin(t.ctx, req); err != nil {
			return err
		}
		if next != nil {
			next = &taken
		}
	}
	return writeJSON(w, apiv1.WrittenStdin{StdinBytes: taken})
}

func stdinQuery(q url.Values) (offset *uint64, eof bool, err error) {
	if text := q.Get("offset"); q.Has("offset") {
		n, err := strconv.ParseUint(text, 10, 63)
		if err != nil {
			return nil, false, badParameter("offset", "must be a number of bytes")
		}
		offset = &n
	}
	switch text := q.Get("eof"); {
	case text == "true":
		eof = true
	case q.Has("eof") && text != "false":
		return nil, false, badParameter("eof", "must be true or false")
	}
	return offset, eof, nil
}

// rawQuery reads a query in which only the allowed parameters may occur, once each.
func rawQuery(r *http.Request, allowed ...string) (url.Values, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, sandbox.Errorf(sandbox.CodeInvalidArgument, "the query string is malformed")
	}
	for name, values := range q {
		if !slices.Contains(allowed, name) {
			return nil, badParameter(fmt.Sprintf("%.60q", name), "is not known here")
		}
		if len(values) != 1 {
			return nil, badParameter(name, "is given more than once")
		}
	}
	return q, nil
}

// movingReader calls moved for each piece that is read.
type movingReader struct {
	r     io.Reader
	moved func()
}

func (m *movingReader) Read(p []byte) (int, error) {
	n, err := m.r.Read(p)
	m.moved()
	return n, err
}

func writeJSON(w http.ResponseWriter, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(append(body, '\n')) // a client that has gone away is nobody's error
	return nil
}
