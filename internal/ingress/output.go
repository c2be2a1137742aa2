package ingress

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

// gapHeader tells, as "from-to", that the bytes from <= n < to were dropped before the first byte of the body.
const gapHeader = "Space-Stream-Gap"

// outputQuery is what GET /v1/commands/{command}/output asks for.
type outputQuery struct {
	stream agentv1.OutputStream
	from   position
	follow bool
}

func parseOutputQuery(p params) (outputQuery, error) {
	q := outputQuery{stream: agentv1.OutputStream_OUTPUT_STREAM_STDOUT}
	switch name, given := p["stream"]; {
	case name == "stderr":
		q.stream = agentv1.OutputStream_OUTPUT_STREAM_STDERR
	case name == "pty":
		q.stream = agentv1.OutputStream_OUTPUT_STREAM_PTY
	case given && name != "stdout":
		return q, paramError("stream", "must be stdout, stderr or pty")
	}
	var err1, err2 error
	q.from, err1 = p.position("offset")
	q.follow, err2 = p.flag("follow")
	return q, errors.Join(err1, err2)
}

// serveOutput is GET /v1/commands/{command}/output: the raw bytes of one stream. A body that ends regularly is
// complete; whatever else happens cuts the connection, so that a client cannot take a part for the whole.
func (h *Handler) serveOutput(w http.ResponseWriter, r *http.Request, command string) error {
	if !r.ProtoAtLeast(1, 1) { // there, a body that is cut off looks like one that has ended
		return &sandbox.Error{Code: sandbox.CodeInvalidArgument, Message: "this route needs HTTP/1.1"}
	}
	p, err := parseQuery(r.URL.RawQuery, "token", "stream", "offset", "follow")
	if err != nil {
		return err
	}
	session, err := h.authorize(r, command, p)
	if err != nil {
		return err
	}
	q, err := parseOutputQuery(p)
	if err != nil {
		return err
	}
	release, err := h.slots.take(session.SandboxID)
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := bindLife(r.Context(), session.Life)
	defer cancel(nil)
	if q.follow { // one that follows is a reader like those that are attached
		defer h.crowd.join(session, false, cancel)()
	}
	src, err := openSource(ctx, session, q.follow, map[agentv1.OutputStream]position{q.stream: q.from}, h.limits.GuestPatience)
	if err != nil {
		return asProblem(err)
	}
	defer src.Close()
	b := &body{w: w, rc: http.NewResponseController(w), src: src, stream: q.stream, stall: h.limits.IdleTimeout}
	// A body that waits for a slow client does not see the end of the session's life.
	defer context.AfterFunc(ctx, b.unblock)()
	err = b.copy()
	b.finish()
	if err != nil && b.begun {
		h.logger.Debug("output cut", "command", session.CommandID, "error", err)
		panic(http.ErrAbortHandler) // the one way to end a body visibly too early
	}
	return asProblem(err)
}

// body writes one stream as a response body.
type body struct {
	w      http.ResponseWriter
	rc     *http.ResponseController
	src    *source
	stream agentv1.OutputStream
	stall  time.Duration // how long one write may take
	begun  bool          // the header has been sent

	mu   sync.Mutex
	done bool // unblock has no business any more
}

// unblock makes a write under way and all later ones fail.
func (b *body) unblock() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.done {
		// An error means that the connection has gone, and then no write waits.
		_ = b.rc.SetWriteDeadline(time.Unix(1, 0))
	}
}

// finish leaves the connection as the end of a body, or an answer in the problem form, needs it.
func (b *body) finish() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done = true
	_ = b.rc.SetWriteDeadline(time.Now().Add(b.stall)) // as in unblock
}

func (b *body) copy() error {
	first := b.src.Offset(b.stream)
	if streamEnd(b.src.Started, b.stream) <= first {
		// Nothing is there yet, so nothing can be missing: answer now, not with the first byte.
		if err := b.begin(nil); err != nil {
			return err
		}
	}
	for {
		ev, err := b.src.Next()
		if err != nil {
			return err
		}
		switch ev.kind {
		case eventGap:
			if b.begun {
				return fmt.Errorf("bytes %d to %d are gone", ev.gap.from, ev.gap.to)
			}
			err = b.begin(&ev.gap)
		case eventData:
			err = b.write(ev.data)
		case eventEnd:
			return b.begin(nil)
		}
		if err != nil {
			return err
		}
	}
}

// begin sends the header unless it has been sent.
func (b *body) begin(g *gap) error {
	if b.begun {
		return nil
	}
	b.begun = true
	head := b.w.Header()
	head.Set("Content-Type", "application/octet-stream")
	head.Set("Cache-Control", "no-store")
	head.Set("X-Content-Type-Options", "nosniff")
	if g != nil {
		head.Set(gapHeader, fmt.Sprintf("%d-%d", g.from, g.to))
	}
	b.w.WriteHeader(http.StatusOK)
	return b.flush()
}

func (b *body) write(data []byte) error {
	if err := b.begin(nil); err != nil {
		return err
	}
	if err := b.deadline(); err != nil {
		return err
	}
	if _, err := b.w.Write(data); err != nil {
		return fmt.Errorf("send to client: %w", err)
	}
	return b.flush()
}

func (b *body) flush() error {
	if err := b.rc.Flush(); err != nil {
		return fmt.Errorf("send to client: %w", err)
	}
	return nil
}

// deadline gives the next write its time, unless the source has ended: then unblock's deadline stands.
func (b *body) deadline() error {
	err := b.rc.SetWriteDeadline(time.Now().Add(b.stall))
	if b.src.ctx.Err() != nil {
		return context.Cause(b.src.ctx)
	}
	if err != nil && !errors.Is(err, http.ErrNotSupported) {
		return sandbox.Errorf(sandbox.CodeInternal, "set a deadline: %w", err)
	}
	return nil
}
