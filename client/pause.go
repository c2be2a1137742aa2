package client

import (
	"context"
	"errors"
	"time"

	"github.com/coder/websocket"

	apiv1 "github.com/space-sandbox/space/api/v1"
)

// ErrPaused is for AttachOptions.OnPaused to return: the attachment ends with it instead of waiting.
var ErrPaused = errors.New("the sandbox is paused")

// codeInvalidState is what calls are refused with that need a running sandbox.
const codeInvalidState = "invalid_state"

// How often a paused sandbox is asked whether it goes on.
const (
	firstLook = 100 * time.Millisecond
	lastLook  = 2 * time.Second
)

// stopped reports whether a connection was ended because the sandbox stands still, and why it does.
func stopped(err error) (reason string, ok bool) {
	closed, ok := errors.AsType[websocket.CloseError](err)
	return closed.Reason, ok && closed.Code == apiv1.CloseStopped
}

// overPause waits until the sandbox goes on and connects again.
func (a *Attachment) overPause(ctx context.Context, reason string) (*websocket.Conn, error) {
	if a.opts.OnPaused != nil {
		if err := a.opts.OnPaused(reason); err != nil {
			return nil, &localError{err}
		}
	}
	retry := backoff{limit: patience}
	for {
		waited, err := a.awaitResume(ctx)
		if err != nil {
			return nil, err
		}
		if waited {
			retry.reset()
		}
		conn, err := a.connect(ctx)
		if Code(err) == codeInvalidState && retry.pause(ctx) {
			continue // it has been paused again, or its record is a little behind
		}
		if err == nil && a.opts.OnResumed != nil {
			a.opts.OnResumed()
		}
		return conn, err
	}
}

// awaitResume returns when the sandbox does not stand still any more, whatever it does instead, and whether it did.
func (a *Attachment) awaitResume(ctx context.Context) (waited bool, err error) {
	box, err := ask(ctx, func() (string, error) {
		c, err := a.c.Command(ctx, a.id)
		if err != nil {
			return "", err
		}
		return c.SandboxID, nil
	})
	if err != nil {
		return false, err
	}
	for look := firstLook; ; look = min(2*look, lastLook) {
		state, err := ask(ctx, func() (string, error) {
			s, err := a.c.Sandbox(ctx, box)
			if err != nil {
				return "", err
			}
			return s.State, nil
		})
		if err != nil || !standing(state) {
			return waited, err
		}
		waited = true
		select {
		case <-time.After(look):
		case <-ctx.Done():
			return waited, context.Cause(ctx)
		}
	}
}

// ask asks until there is an answer, over restarts of the server.
func ask(ctx context.Context, question func() (string, error)) (string, error) {
	retry := backoff{limit: patience}
	for {
		answer, err := question()
		if err == nil || !isPassing(err) || !retry.pause(ctx) {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return answer, err
		}
	}
}

// standing reports whether a sandbox in a state goes on later.
func standing(state string) bool {
	switch state {
	case "pausing", "paused", "resuming", "suspending", "suspended", "waking":
		return true
	}
	return false
}
