package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/client"
)

// errDetached is the cause of the context's end after a second Ctrl-C.
var errDetached = errors.New("detached")

// interrupts turns Ctrl-C into a signal for a command, and the second one into leaving it; the first one when the command
// stands still.
type interrupts struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	caught chan os.Signal
	note   pauseNote
}

// forwardInterrupts catches Ctrl-C until stop is called. The returned context ends when the command is to be left.
func forwardInterrupts(ctx context.Context, c *client.Client, id string) (context.Context, *interrupts) {
	i := &interrupts{caught: make(chan os.Signal, 2)}
	i.ctx, i.cancel = context.WithCancelCause(ctx)
	signal.Notify(i.caught, os.Interrupt)
	go i.run(c, id)
	return i.ctx, i
}

func (i *interrupts) run(c *client.Client, id string) {
	for first := true; ; first = false {
		select {
		case <-i.ctx.Done():
			return
		case <-i.caught:
		}
		if !first || i.note.paused.Load() {
			i.cancel(errDetached)
			return
		}
		go func() {
			// It may not run yet, or not any more: then there is nothing to interrupt, and a second Ctrl-C ends us.
			_, _ = c.Signal(i.ctx, id, "SIGINT")
		}()
	}
}

func (i *interrupts) stop() {
	signal.Stop(i.caught)
	i.cancel(nil)
}

// verdict is what an early end of an attachment means to the user.
func (i *interrupts) verdict(cli *cli, id string, err error) error {
	if !errors.Is(context.Cause(i.ctx), errDetached) {
		return err
	}
	fmt.Fprintf(cli.err, "space: detached; the command goes on: %s\n", id)
	return exitStatus(exitInterrupted)
}

// interruptible runs what has something to clean up when a signal ends it: its context ends then, and what it leaves
// behind is the signal's exit code. A second signal does not wait for it.
func interruptible(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer signal.Stop(caught)
	go func() {
		select {
		case <-ctx.Done():
		case sig := <-caught:
			signal.Stop(caught)
			s, _ := sig.(syscall.Signal)
			cancel(signaled{s})
		}
	}()
	err := do(ctx)
	if s, ok := errors.AsType[signaled](context.Cause(ctx)); err != nil && ok {
		return exitStatus(exitSignal + int(s.sig))
	}
	return err
}
