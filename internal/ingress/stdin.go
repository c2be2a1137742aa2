package ingress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/coder/websocket"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

const (
	// stdinChunk and stdinQueue bound what is kept of a client's input while its process does not read: 256 KiB. Up
	// to there signals still overtake it.
	stdinChunk    = 32 << 10
	stdinQueue    = 8
	signalTimeout = 10 * time.Second
)

// stdinItem is a piece of input, or its end.
type stdinItem struct {
	data  []byte
	eof   bool
	taken chan<- struct{} // when not nil, it is closed instead: all before has been taken
}

// readLoop takes the client's frames. It returns why it ended, never nil.
func (a *attachment) readLoop(ctx context.Context) error {
	for {
		kind, r, err := a.conn.Reader(a.io)
		if err != nil {
			return fmt.Errorf("client: %w", err)
		}
		a.moved()
		if kind != websocket.MessageBinary {
			return &clientError{websocket.StatusUnsupportedData, "only binary frames are known here"}
		}
		var channel [1]byte
		if _, err := io.ReadFull(r, channel[:]); err != nil {
			if errors.Is(err, io.EOF) {
				return &clientError{websocket.StatusPolicyViolation, "a frame begins with its channel"}
			}
			return fmt.Errorf("client: %w", err)
		}
		switch channel[0] {
		case apiv1.ChannelStdin:
			err = a.takeStdin(ctx, r)
		case apiv1.ChannelControl:
			err = a.takeControl(ctx, r)
		default:
			err = &clientError{websocket.StatusPolicyViolation, fmt.Sprintf("channel %d does not take input", channel[0])}
		}
		if err != nil {
			return err
		}
	}
}

// drain gives the process the input that is still queued when a client has closed in order. One that was cut off sends it
// again with its next attach; one that has left does not come back. A process that does not read ends the wait.
func (a *attachment) drain(ctx context.Context, end error) {
	if websocket.CloseStatus(end) != websocket.StatusNormalClosure {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, closeGrace)
	defer cancel()
	taken := make(chan struct{})
	select {
	case a.stdin <- stdinItem{taken: taken}:
	case <-ctx.Done():
		return
	}
	select {
	case <-taken:
	case <-ctx.Done():
	}
}

// takeStdin queues a frame's bytes as they arrive.
func (a *attachment) takeStdin(ctx context.Context, r io.Reader) error {
	for {
		buf := make([]byte, stdinChunk)
		n, err := r.Read(buf)
		if n > 0 {
			a.moved()
			if err := a.enqueue(ctx, stdinItem{data: buf[:n]}); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("client: %w", err)
		}
	}
}

func (a *attachment) takeControl(ctx context.Context, r io.Reader) error {
	data, err := io.ReadAll(io.LimitReader(r, maxControlIn+1))
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	if len(data) > maxControlIn {
		return &clientError{websocket.StatusMessageTooBig, fmt.Sprintf("a control frame has at most %d bytes", maxControlIn)}
	}
	c, err := parseControl(data)
	switch {
	case errors.Is(err, errUnknownControl):
		return a.sendControl(newErrorFrame(sandbox.Errorf(sandbox.CodeInvalidArgument, "%s", err)))
	case err != nil:
		return &clientError{websocket.StatusPolicyViolation, err.Error()}
	case c.eof:
		return a.enqueue(ctx, stdinItem{eof: true})
	}
	ctx, cancel := context.WithTimeout(ctx, signalTimeout)
	defer cancel()
	if c.size != nil {
		err = a.session.Guest.ResizeProcess(ctx, a.session.ProcessID, c.size)
	} else {
		err = a.session.Guest.SignalProcess(ctx, a.session.ProcessID, c.signal)
	}
	if err != nil {
		return a.sendControl(newErrorFrame(err))
	}
	return nil
}

func (a *attachment) enqueue(ctx context.Context, item stdinItem) error {
	select {
	case a.stdin <- item:
		return nil
	default:
	}
	a.inHold.Store(true)
	defer func() {
		a.moved()
		a.inHold.Store(false)
	}()
	select {
	case a.stdin <- item:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// stdinLoop writes the client's input to the process in the order of its arrival. Input that can go nowhere any more
// is told once and then dropped, so that the client's control frames and pongs are still seen.
//
// It returns when ctx ends, or why the connection has to.
func (a *attachment) stdinLoop(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case item := <-a.stdin:
			if item.taken != nil {
				close(item.taken)
				continue
			}
			if a.stdinErr {
				continue
			}
			_, err := a.session.Guest.WriteStdin(ctx, &agentv1.WriteStdinRequest{
				ProcessId: string(a.session.ProcessID), Data: item.data, Eof: item.eof})
			if err == nil || ctx.Err() != nil {
				continue
			}
			if worthRetry(err) { // how much was taken is not known: the client's next attach tells
				return err
			}
			a.stdinErr = true
			if err := a.sendControl(newErrorFrame(err)); err != nil {
				return err
			}
		}
	}
}
