package vmm

import (
	"context"
	"fmt"
	"os"
)

// End is where a driver keeps how a machine ended, for all who wait. Make it with NewEnd.
type End struct {
	done chan struct{}
	exit Exit // valid when done is closed
}

// NewEnd is for a machine that runs.
func NewEnd() *End { return &End{done: make(chan struct{})} }

// Set tells how the machine ended. It may be called once.
func (e *End) Set(exit Exit) {
	e.exit = exit
	close(e.done)
}

// Exit is how the machine ended, if it has.
func (e *End) Exit() (exit Exit, ended bool) {
	select {
	case <-e.done:
		return e.exit, true
	default:
		return Exit{}, false
	}
}

// Wait blocks until the machine has ended, its handle is closed (an os.ErrClosed) or ctx is done. An end that is known
// is told also when the others are true.
func (e *End) Wait(ctx, handle context.Context) (Exit, error) {
	if exit, ended := e.Exit(); ended {
		return exit, nil
	}
	select {
	case <-e.done:
		return e.exit, nil
	case <-handle.Done():
		return Exit{}, fmt.Errorf("handle of a machine: %w", os.ErrClosed)
	case <-ctx.Done():
		return Exit{}, ctx.Err()
	}
}
