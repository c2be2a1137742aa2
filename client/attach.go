package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"

	"github.com/coder/websocket"

	apiv1 "github.com/space-sandbox/space/api/v1"
)

// maxFrame bounds what is read as one message of the server.
const maxFrame = 1 << 20

// AttachOptions says what Attach does with a session's streams.
type AttachOptions struct {
	// Stdout and Stderr get the output, in order and each byte once; nil discards. They are written by one goroutine.
	// What a terminal shows goes to Stdout. An error of a writer ends the attachment, not the command.
	Stdout, Stderr io.Writer
	// StdoutOffset, StderrOffset and PTYOffset skip that many bytes of each stream.
	StdoutOffset, StderrOffset, PTYOffset uint64
	// Takeover ends all other attachments of the session.
	Takeover bool
	// Size, when not nil, becomes the size of the session's terminal.
	Size *apiv1.PTY
	// OnGap, when not nil, is told that the bytes from <= n < to of a stream are gone: the command wrote more than is
	// kept before they were read.
	OnGap func(channel byte, from, to uint64)
	// OnPaused, when not nil, is told that the sandbox stands still, and why: "paused", or "pool_full" when the host's disk
	// pool is full. The attachment waits until the sandbox goes on, and goes on itself where it was; an error of OnPaused,
	// such as ErrPaused, ends it instead. OnResumed, when not nil, is told that it goes on.
	OnPaused  func(reason string) error
	OnResumed func()
	// Token, when not nil, is used for the first connection instead of asking for one.
	Token *apiv1.Attach
}

// Exit is how a command session ended.
type Exit struct {
	State    string              // exited, failed, expired or lost
	ExitCode *int                // of exited; -1 when a signal ended it
	Signal   string              // such as "SIGKILL"; "" when it ended by itself
	Error    *apiv1.CommandError // why it never started, or was ended early
}

// Attachment is a client's end of a running command session. It is made by Attach and ends by itself.
type Attachment struct {
	c    *Client
	id   string
	opts AttachOptions

	// Of the goroutine in run.
	token    *apiv1.Attach
	stdout   position
	stderr   position
	pty      position
	takeover bool

	in   input
	done chan struct{}
	mu   sync.Mutex
	exit *Exit
	err  error
}

// position is how far one stream has been passed on.
type position struct {
	want uint64 // the next byte to pass on
	at   uint64 // the next byte of this connection
}

// Attach follows a command session, starting its process if that has not been done. It returns when the session is
// attached, or with the error that keeps it from being so: that of a paused sandbox has the code invalid_state. When the
// connection breaks, it is made again, and goes on where it was; a server that cannot be reached for a minute ends it. A
// pause of the sandbox is waited for, however long it lasts. When ctx ends, the attachment ends and the command goes on.
func (c *Client) Attach(ctx context.Context, id string, opts AttachOptions) (*Attachment, error) {
	a := &Attachment{c: c, id: id, opts: opts, token: opts.Token, done: make(chan struct{}),
		stdout: position{want: opts.StdoutOffset}, stderr: position{want: opts.StderrOffset},
		pty: position{want: opts.PTYOffset}, takeover: opts.Takeover}
	a.in.init()
	a.in.size = opts.Size
	conn, err := a.connect(ctx)
	if err != nil {
		return nil, err
	}
	go func() {
		exit, err := a.run(ctx, conn)
		a.in.stop()
		a.mu.Lock()
		a.exit, a.err = exit, err
		a.mu.Unlock()
		close(a.done)
	}()
	return a, nil
}

// Wait waits for the end of the session and returns how it ended, after all of its output has been written; or for the
// end of the attachment, and returns why that ended early. When both are returned, the session has ended but not all of
// its output could be read.
func (a *Attachment) Wait() (*Exit, error) {
	<-a.done
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.exit, a.err
}

// Write queues p for the standard input of the command and returns when it has been queued: at most 1 MiB waits for
// the command to read it. It fails when the attachment has ended. It makes an Attachment an io.Writer.
func (a *Attachment) Write(p []byte) (int, error) { return a.in.write(p) }

// CloseStdin ends the command's standard input after all that was written.
func (a *Attachment) CloseStdin() { a.in.close() }

// ErrDetached is what Wait gives after Detach.
var ErrDetached = errors.New("detached")

// Detach ends the attachment after all that was written has been taken by the session; the command goes on. It does not
// wait: Wait then gives ErrDetached, or how the session ended before. A session that takes no input, or cannot be
// reached, holds it up: the context of Attach ends that.
func (a *Attachment) Detach() { a.in.leave() }

// Resize changes the size of the command's terminal.
func (a *Attachment) Resize(size apiv1.PTY) { a.in.resize(size) }

// run follows the session over as many connections as it takes.
func (a *Attachment) run(ctx context.Context, conn *websocket.Conn) (*Exit, error) {
	retry := backoff{limit: patience}
	var progress uint64 // bytes moved in either direction
	for {
		exit, err := a.follow(ctx, conn)
		conn.CloseNow()
		if reason, paused := stopped(err); paused && ctx.Err() == nil {
			if conn, err = a.overPause(ctx, reason); err != nil {
				return a.ended(ctx, err)
			}
			retry.reset()
			continue
		}
		if exit != nil {
			return exit, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if a.in.hasLeft() && websocket.CloseStatus(err) == websocket.StatusNormalClosure {
			return nil, ErrDetached
		}
		if err = a.verdict(ctx, err); err != nil {
			return a.ended(ctx, err)
		}
		if now := a.stdout.want + a.stderr.want + a.pty.want + a.in.acceptedBytes(); now != progress {
			progress = now
			retry.reset()
		}
		if !retry.pause(ctx) {
			return nil, fmt.Errorf("command %s: the connection breaks again and again", a.id)
		}
		conn, err = a.connect(ctx)
		if Code(err) == codeInvalidState { // it was paused while the connection was broken
			conn, err = a.overPause(ctx, "paused")
		}
		if err != nil {
			return a.ended(ctx, err)
		}
	}
}

// verdict decides what the end of a connection means: nil is to connect again.
func (a *Attachment) verdict(ctx context.Context, err error) error {
	if _, ok := errors.AsType[*localError](err); ok {
		return err
	}
	if errors.Is(err, websocket.ErrMessageTooBig) {
		return nonsense(err)
	}
	closed, ok := errors.AsType[websocket.CloseError](err)
	if !ok {
		return nil
	}
	switch closed.Code {
	case apiv1.CloseTakenOver, apiv1.CloseLost, websocket.StatusProtocolError, websocket.StatusUnsupportedData,
		websocket.StatusPolicyViolation, websocket.StatusMessageTooBig, websocket.StatusInvalidFramePayloadData:
		return fmt.Errorf("command %s: %s", a.id, closed.Reason)
	}
	return nil
}

// ended asks for the record of a session whose attachment ended with err: when the session has ended, that is what
// counts.
func (a *Attachment) ended(ctx context.Context, err error) (*Exit, error) {
	if _, ok := errors.AsType[*localError](err); ok {
		return nil, err
	}
	c, askErr := a.c.Command(ctx, a.id)
	if askErr != nil || !c.Ended() {
		return nil, err
	}
	exit := &Exit{State: c.State, ExitCode: c.ExitCode, Error: c.Error}
	if c.Signal != nil {
		exit.Signal = *c.Signal
	}
	if c.State == "exited" {
		return exit, fmt.Errorf("the end of the output is missing: %w", err)
	}
	return exit, nil
}

// connect opens a connection, trying again while that may help.
func (a *Attachment) connect(ctx context.Context) (*websocket.Conn, error) {
	retry := backoff{limit: patience}
	for fresh := false; ; {
		conn, err := a.dial(ctx)
		if err == nil {
			return conn, nil
		}
		if e, ok := errors.AsType[*Error](err); ok && e.Status == http.StatusUnauthorized && !fresh {
			a.token, fresh = nil, true // it has expired: ask for another one, once
			continue
		}
		if !isPassing(err) || !retry.pause(ctx) {
			return nil, err
		}
	}
}

// dial makes one attempt at a connection from where the streams are.
func (a *Attachment) dial(ctx context.Context) (*websocket.Conn, error) {
	if a.token == nil {
		token, err := a.c.AttachToken(ctx, a.id)
		if err != nil {
			return nil, err
		}
		a.token = token
	}
	q := url.Values{"stdout_offset": {strconv.FormatUint(a.stdout.want, 10)}, "stderr_offset": {strconv.FormatUint(a.stderr.want, 10)}}
	if a.pty.want > 0 {
		q.Set("pty_offset", strconv.FormatUint(a.pty.want, 10))
	}
	if a.takeover {
		q.Set("takeover", "true")
	}
	conn, resp, err := websocket.Dial(ctx, a.token.URL+"?"+q.Encode(), &websocket.DialOptions{ //nolint:bodyclose // on an error its body is in memory, else it is the connection
		HTTPClient:   a.c.http(),
		HTTPHeader:   http.Header{"Authorization": {"Bearer " + a.token.Token}},
		Subprotocols: []string{apiv1.AttachProtocol},
	})
	if err != nil {
		if resp != nil && resp.StatusCode != http.StatusSwitchingProtocols {
			return nil, readError(resp)
		}
		return nil, fmt.Errorf("attach to command %s: %w", a.id, err)
	}
	conn.SetReadLimit(maxFrame)
	a.takeover = false // done: who comes later must not be sent away by a connection that is made again
	return conn, nil
}

// localError ends an attachment for a reason that another connection does not help with.
type localError struct{ err error }

func (e *localError) Error() string { return e.err.Error() }
func (e *localError) Unwrap() error { return e.err }

func nonsense(err error) error {
	return &localError{fmt.Errorf("the server does not speak %s: %w", apiv1.AttachProtocol, err)}
}

// follow reads one connection to its end. The exit is nil unless the session has ended.
func (a *Attachment) follow(ctx context.Context, conn *websocket.Conn) (*Exit, error) {
	ctx, cancel := context.WithCancel(ctx)
	var sender sync.WaitGroup
	defer sender.Wait()
	defer cancel()
	for {
		_, frame, err := conn.Read(ctx)
		if err != nil {
			return nil, fmt.Errorf("read from command %s: %w", a.id, err)
		}
		if len(frame) == 0 {
			return nil, nonsense(errors.New("empty frame"))
		}
		switch channel, body := frame[0], frame[1:]; channel {
		case apiv1.ChannelStdout:
			err = a.stdout.pass(a.opts.Stdout, body)
		case apiv1.ChannelStderr:
			err = a.stderr.pass(a.opts.Stderr, body)
		case apiv1.ChannelPTY:
			err = a.pty.pass(a.opts.Stdout, body)
		case apiv1.ChannelControl:
			var f apiv1.Control
			if err := json.Unmarshal(body, &f); err != nil {
				return nil, nonsense(err)
			}
			if f.Type == apiv1.FrameExit {
				return &Exit{State: f.State, ExitCode: f.ExitCode, Signal: f.Signal, Error: f.Error}, nil
			}
			err = a.control(ctx, f, conn, &sender)
		}
		if err != nil {
			return nil, err
		}
	}
}

// control takes a control frame other than exit. Types that are not known belong to later versions.
func (a *Attachment) control(ctx context.Context, f apiv1.Control, conn *websocket.Conn, sender *sync.WaitGroup) error {
	switch f.Type {
	case apiv1.FrameStarted:
		a.stdout.at, a.stderr.at, a.pty.at = f.StdoutOffset, f.StderrOffset, f.PTYOffset
		if err := a.in.resume(f.StdinOffset); err != nil {
			return &localError{err}
		}
		sender.Go(func() { a.in.send(ctx, conn) })
	case apiv1.FrameGap:
		p := &a.stdout
		switch f.Channel {
		case apiv1.ChannelStderr:
			p = &a.stderr
		case apiv1.ChannelPTY:
			p = &a.pty
		}
		p.at = f.To
		if f.To > p.want {
			if a.opts.OnGap != nil {
				a.opts.OnGap(f.Channel, p.want, f.To)
			}
			p.want = f.To
		}
	}
	return nil
}

// pass writes the part of body that has not been written yet.
func (p *position) pass(w io.Writer, body []byte) error {
	start := p.at
	p.at += uint64(len(body))
	if p.at <= p.want {
		return nil
	}
	if start < p.want {
		body = body[p.want-start:]
	}
	p.want = p.at
	if w == nil {
		return nil
	}
	if _, err := w.Write(body); err != nil {
		return &localError{fmt.Errorf("write the output: %w", err)}
	}
	return nil
}
