package ingress

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

// closeGrace is how long a client gets to answer our close frame before its connection is cut.
const closeGrace = 2 * time.Second

// serveAttach is GET /v1/attach/{command}. Everything that can be refused is refused before the upgrade.
func (h *Handler) serveAttach(w http.ResponseWriter, r *http.Request, command string) error {
	p, err := parseQuery(r.URL.RawQuery, "token", "stdout_offset", "stderr_offset", "pty_offset", "takeover")
	if err != nil {
		return err
	}
	session, err := h.authorize(r, command, p)
	if err != nil {
		return err
	}
	stdout, err1 := p.position("stdout_offset")
	stderr, err2 := p.position("stderr_offset")
	pty, err3 := p.position("pty_offset")
	takeover, err4 := p.flag("takeover")
	if err := errors.Join(err1, err2, err3, err4, checkUpgrade(r), checkProtocol(r)); err != nil {
		return err
	}
	release, err := h.slots.take(session.SandboxID)
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := bindLife(r.Context(), session.Life)
	defer cancel(nil)
	src, err := openSource(ctx, session, true, map[agentv1.OutputStream]position{
		agentv1.OutputStream_OUTPUT_STREAM_STDOUT: stdout,
		agentv1.OutputStream_OUTPUT_STREAM_STDERR: stderr,
		agentv1.OutputStream_OUTPUT_STREAM_PTY:    pty,
	}, h.limits.GuestPatience)
	if err != nil {
		return asProblem(err)
	}
	defer src.Close()
	lw := &lingerWriter{ResponseWriter: w}
	conn, err := websocket.Accept(lw, r, &websocket.AcceptOptions{
		Subprotocols: []string{apiv1.AttachProtocol},
		// Any web page may open this socket: what lets a request in is the token, which a browser never sends by
		// itself as it does cookies, so a foreign page has nothing to ride on.
		InsecureSkipVerify: true,
		CompressionMode:    websocket.CompressionDisabled,
	})
	if err != nil {
		h.logger.Debug("upgrade failed", "command", session.CommandID, "error", err)
		return nil // Accept has answered
	}
	defer h.crowd.join(session, takeover, cancel)()
	newAttachment(h, session, src, conn, lw.conn).run(ctx, cancel)
	return nil
}

// bindLife returns a context that ends with either; its cause tells which.
func bindLife(parent, life context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	stop := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	return ctx, func(cause error) {
		stop()
		cancel(cause)
	}
}

// asProblem turns the end of a session's life, or of its client, into an answer.
func asProblem(err error) error {
	if errors.Is(err, errTakenOver) {
		return &sandbox.Error{Code: sandbox.CodeCanceled, Message: errTakenOver.Error()}
	}
	if lost, ok := errors.AsType[*LostError](err); ok {
		return &sandbox.Error{Code: sandbox.CodeNotFound, Message: "the sandbox of this command is gone", Cause: lost.Reason}
	}
	if paused, ok := errors.AsType[*PausedError](err); ok {
		return paused.Refusal()
	}
	if errors.Is(err, ErrRestart) || errors.Is(err, context.Canceled) {
		return &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the gateway is restarting", Remedy: "try again in a moment"}
	}
	return err
}

// attachment is one WebSocket client of a session.
type attachment struct {
	h       *Handler
	session Session
	src     *source
	conn    *websocket.Conn
	sock    *lingerConn
	stdin   chan stdinItem
	frame   [maxFrameOut]byte

	// io ends reads from and writes to the client at once; closing otherwise is by a close frame.
	io       context.Context
	cutIO    context.CancelFunc
	idle     *time.Timer
	inHold   atomic.Bool // the client's input waits for the process; its pongs cannot be seen meanwhile
	stdinErr bool        // the client has been told that its input goes nowhere; of stdinLoop
	ending   atomic.Bool
	ended    chan struct{}
}

func newAttachment(h *Handler, s Session, src *source, conn *websocket.Conn, sock *lingerConn) *attachment {
	conn.SetReadLimit(maxFrameIn)
	a := &attachment{h: h, session: s, src: src, conn: conn, sock: sock, stdin: make(chan stdinItem, stdinQueue), ended: make(chan struct{})}
	a.io, a.cutIO = context.WithCancel(context.Background())
	return a
}

// run carries the session until it ends, then closes with the code that tells why.
func (a *attachment) run(ctx context.Context, cancel context.CancelCauseFunc) {
	a.idle = time.AfterFunc(a.h.limits.IdleTimeout, a.onIdle)
	defer a.idle.Stop()
	var wg sync.WaitGroup
	read := make(chan struct{})
	wg.Go(func() {
		defer close(read)
		err := a.readLoop(ctx)
		a.drain(ctx, err)
		cancel(err)
	})
	wg.Go(func() { cancel(a.stdinLoop(ctx)) })
	wg.Go(func() { a.pingLoop(ctx) })
	// A pump that waits for a slow client does not see the end of the session's life.
	stop := context.AfterFunc(ctx, func() { a.end(context.Cause(ctx)) })
	defer stop()
	err := a.pump()
	a.end(err)
	if _, gone := errors.AsType[*sendError](err); gone { // how the client went, and what it has left to do, the reader knows
		a.await(read)
	}
	cancel(err)
	a.cutIO()
	wg.Wait()
	a.finish(err)
}

// await waits for done, closeGrace at most.
func (a *attachment) await(done <-chan struct{}) {
	patience := time.NewTimer(closeGrace)
	defer patience.Stop()
	select {
	case <-done:
	case <-patience.C:
	}
}

// end sends the close frame for err and gives the client closeGrace to answer it. Only the first call counts; others
// wait for it.
func (a *attachment) end(err error) {
	if a.ending.Swap(true) {
		<-a.ended
		return
	}
	defer close(a.ended)
	if _, ok := errors.AsType[*sandbox.Error](err); ok && a.session.Life.Err() != nil {
		err = context.Cause(a.session.Life) // a call that failed was noticed first
	}
	code, reason := closeCode(err)
	a.h.logger.Debug("attachment ends", "command", a.session.CommandID, "code", int(code), "reason", reason)
	if code != apiv1.CloseExit { // a client that is behind at the regular end gets all the time Close takes
		grace := time.AfterFunc(closeGrace, a.cutIO)
		defer grace.Stop()
	}
	// An error here means that the client has gone already.
	_ = a.conn.Close(code, reasonText(reason))
}

// finish closes the socket. A client that is behind at the regular end may still read what is left, unless the gateway
// has to go.
func (a *attachment) finish(err error) {
	linger := time.Duration(0)
	if _, regular := errors.AsType[*endError](err); regular {
		linger = a.h.limits.Linger
	}
	stop := context.AfterFunc(a.session.Life, func() { a.sock.Conn.Close() })
	defer stop()
	a.sock.finish(linger)
}

// endError carries the regular end of a session to where connections are closed.
type endError struct{ exit *agentv1.Process }

func (e *endError) Error() string { return exitReason(e.exit) }

// sendError is that nothing more can be sent to the client.
type sendError struct{ err error }

func (e *sendError) Error() string { return "send to client: " + e.err.Error() }
func (e *sendError) Unwrap() error { return e.err }

// clientError is a fault of the client that ends its connection.
type clientError struct {
	code   websocket.StatusCode
	reason string
}

func (e *clientError) Error() string { return e.reason }

// pump sends the session's output to the client. It returns why it ended, never nil.
func (a *attachment) pump() error {
	if err := a.sendControl(newStartedFrame(a.session, a.src)); err != nil {
		return err
	}
	for {
		ev, err := a.src.Next()
		if err != nil {
			return err
		}
		switch ev.kind {
		case eventData:
			err = a.sendData(channelOf(ev.stream), ev.data)
		case eventGap:
			err = a.sendControl(gapFrame{Type: apiv1.FrameGap, Channel: channelOf(ev.stream), From: ev.gap.from, To: ev.gap.to})
		case eventEnd:
			if err = a.sendControl(newExitFrame(a.session, ev.exit)); err == nil {
				err = &endError{exit: ev.exit}
			}
		}
		if err != nil {
			return err
		}
	}
}

func (a *attachment) sendData(channel byte, data []byte) error {
	a.frame[0] = channel
	for len(data) > 0 {
		n := copy(a.frame[1:], data)
		if err := a.send(a.frame[:1+n]); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

func (a *attachment) sendControl(frame any) error {
	body, err := json.Marshal(frame)
	if err != nil {
		return fmt.Errorf("marshal control frame: %w", err)
	}
	return a.send(append([]byte{apiv1.ChannelControl}, body...))
}

func (a *attachment) send(frame []byte) error {
	if err := a.conn.Write(a.io, websocket.MessageBinary, frame); err != nil {
		return &sendError{err}
	}
	a.moved()
	return nil
}

// moved notes that the connection is alive.
func (a *attachment) moved() { a.idle.Reset(a.h.limits.IdleTimeout) }

func (a *attachment) onIdle() {
	if a.inHold.Load() {
		a.moved()
		return
	}
	a.cutIO()
}

// pingLoop keeps middle boxes from forgetting the connection. A ping that is not answered is the idle timer's matter:
// a client that reads slowly sees it late.
func (a *attachment) pingLoop(ctx context.Context) {
	tick := time.NewTicker(a.h.limits.PingInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if a.inHold.Load() {
			// We would not see the pong, and a client that is stuck in sending its input cannot even send it.
			continue
		}
		if a.conn.Ping(a.io) != nil {
			return
		}
		a.moved()
	}
}

// closeCode is the close code and text for the end of an attachment.
func closeCode(err error) (websocket.StatusCode, string) {
	if e, ok := errors.AsType[*endError](err); ok {
		return apiv1.CloseExit, e.Error()
	}
	if e, ok := errors.AsType[*LostError](err); ok {
		return apiv1.CloseLost, e.Reason
	}
	if e, ok := errors.AsType[*PausedError](err); ok {
		return apiv1.CloseStopped, e.Reason
	}
	if errors.Is(err, errTakenOver) {
		return apiv1.CloseTakenOver, errTakenOver.Error()
	}
	if e, ok := errors.AsType[*clientError](err); ok {
		return e.code, e.reason
	}
	if errors.Is(err, ErrRestart) {
		return websocket.StatusServiceRestart, "the gateway is restarting: attach again from your offsets"
	}
	e, ok := errors.AsType[*sandbox.Error](err)
	switch {
	case !ok: // the client has gone, or does not read
		return websocket.StatusGoingAway, "going away: attach again from your offsets"
	case worthRetry(e):
		return websocket.StatusTryAgainLater, string(e.Code) + ": attach again from your offsets"
	}
	return apiv1.CloseLost, string(e.Code) + ": " + e.Error()
}

// checkUpgrade refuses in our own form what is no WebSocket handshake.
func checkUpgrade(r *http.Request) error {
	if !r.ProtoAtLeast(1, 1) || r.ProtoMajor != 1 || !headerHas(r, "Connection", "upgrade") || !headerHas(r, "Upgrade", "websocket") ||
		r.Header.Get("Sec-WebSocket-Version") != "13" || !handshakeKey(r.Header.Values("Sec-WebSocket-Key")) {
		return &sandbox.Error{Code: sandbox.CodeInvalidArgument, Message: "this route is a WebSocket",
			Cause:  "the request is not an HTTP/1.1 upgrade to websocket version 13",
			Remedy: "use a WebSocket client, or GET /v1/commands/{command}/output"}
	}
	return nil
}

func handshakeKey(values []string) bool {
	if len(values) != 1 {
		return false
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(values[0]))
	return err == nil && len(key) == 16
}

func headerHas(r *http.Request, name, token string) bool {
	for _, v := range r.Header.Values(name) {
		for t := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(strings.TrimSpace(t), token) {
				return true
			}
		}
	}
	return false
}
