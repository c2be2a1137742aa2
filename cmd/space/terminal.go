package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
)

// defaultSize is a terminal's where there is none to ask.
func defaultSize() apiv1.PTY { return apiv1.PTY{Cols: 80, Rows: 24} }

// leaveGrace is how long what was typed before a session was left may take to get there.
const leaveGrace = 3 * time.Second

// signaled is the cause of the context's end when a signal is to end space.
type signaled struct{ sig syscall.Signal }

func (s signaled) Error() string { return s.sig.String() }

// terminal is the user's terminal: where keys come from and whose size counts.
type terminal struct {
	file *os.File // nil when standard input is none
}

func userTerminal(in io.Reader) terminal {
	if f, ok := in.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return terminal{file: f}
	}
	return terminal{}
}

func (t terminal) present() bool { return t.file != nil }

// size is the terminal's, or nil when it has none.
func (t terminal) size() *apiv1.PTY {
	if t.file == nil {
		return nil
	}
	cols, rows, err := term.GetSize(int(t.file.Fd()))
	if err != nil || cols < 1 || rows < 1 {
		return nil
	}
	return &apiv1.PTY{Cols: cols, Rows: rows}
}

// sizeOrDefault is what a session starts with.
func (t terminal) sizeOrDefault() *apiv1.PTY {
	if size := t.size(); size != nil {
		return size
	}
	size := defaultSize()
	return &size
}

// raw hands every key to the session, and returns how the terminal becomes what it was before: call it at every end.
func (t terminal) raw() (restore func(), err error) {
	if t.file == nil {
		return func() {}, nil
	}
	fd := int(t.file.Fd())
	before, err := term.MakeRaw(fd)
	if err != nil {
		return nil, fmt.Errorf("prepare the terminal: %w", err)
	}
	return sync.OnceFunc(func() {
		_ = term.Restore(fd, before) // it may be gone, with the window it was in
	}), nil
}

// catchSignals catches what concerns a terminal. Begin before the terminal is made raw: a signal that ends space must
// not leave it so.
func catchSignals() chan os.Signal {
	caught := make(chan os.Signal, 8)
	signal.Notify(caught, unix.SIGWINCH, unix.SIGCONT, unix.SIGTERM, unix.SIGHUP)
	return caught
}

// follow reports changes of the size, and signals that are to end space, until stop is called. A terminal that comes
// back after a stop is made raw again.
func (t terminal) follow(caught chan os.Signal, resized func(apiv1.PTY), end func(syscall.Signal)) (stop func()) {
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				return
			case sig := <-caught:
				s, _ := sig.(syscall.Signal)
				if s == unix.SIGTERM || s == unix.SIGHUP {
					end(s)
					continue
				}
				if s == unix.SIGCONT && t.file != nil {
					_, _ = term.MakeRaw(int(t.file.Fd())) // how it was before is known already
				}
				if size := t.size(); size != nil {
					resized(*size)
				}
			}
		}
	}()
	return sync.OnceFunc(func() { close(done) })
}

// onTerminal connects a session that has a terminal with the user's until it ends or is left.
func (c *cli) onTerminal(ctx context.Context, api *client.Client, id string, opts client.AttachOptions) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	t := userTerminal(c.in)
	opts.Stdout, opts.Stderr, opts.Size = c.out, c.err, t.size()
	opts.OnGap = func(_ byte, from, to uint64) {
		fmt.Fprintf(c.err, "\r\nspace: %d bytes of output are missing (the command wrote faster than they were read)\r\n", to-from)
	}
	note := &pauseNote{}
	note.tell(c, &opts, t.present())
	a, err := api.Attach(ctx, id, opts)
	if err != nil {
		return err
	}
	caught := catchSignals()
	defer signal.Stop(caught)
	restore, err := t.raw()
	if err != nil {
		return err
	}
	defer restore()
	defer t.follow(caught, a.Resize, func(sig syscall.Signal) { cancel(signaled{sig}) })()
	go func() { // ends with the process: a read of a terminal cannot be interrupted
		if c.typeKeys(a, t.present(), note) {
			a.Detach()
			grace := leaveGrace
			if note.paused.Load() { // nobody takes what was typed
				grace = 0
			}
			time.AfterFunc(grace, func() { cancel(client.ErrDetached) })
		}
	}()
	exit, err := a.Wait()
	restore()
	if err != nil {
		return c.parted(ctx, id, err)
	}
	return c.ended(exit)
}

const keyInterrupt = 0x03 // Ctrl-C

// typeKeys passes on what is typed and reports whether the session is to be left. While its sandbox is paused Ctrl-C does
// that too.
func (c *cli) typeKeys(a *client.Attachment, keys bool, note *pauseNote) (leave bool) {
	seq := newEscapes()
	buf := make([]byte, 4096)
	for {
		n, err := c.in.Read(buf)
		typed := buf[:n]
		if keys {
			if note.paused.Load() && bytes.IndexByte(typed, keyInterrupt) >= 0 {
				return true
			}
			typed, leave = seq.filter(typed)
		}
		if _, werr := a.Write(typed); werr != nil {
			return false // the attachment has ended: Wait says why
		}
		if leave {
			return true
		}
		if err != nil {
			a.CloseStdin()
			return false
		}
	}
}

// parted is what an early end of a session on the terminal means to the user.
func (c *cli) parted(ctx context.Context, id string, err error) error {
	if errors.Is(err, client.ErrDetached) {
		fmt.Fprintf(c.err, "\nspace: left; the command goes on. Come back with: space attach %s\n", id)
		return nil
	}
	if s, ok := errors.AsType[signaled](context.Cause(ctx)); ok {
		fmt.Fprintf(c.err, "space: ended by a signal; the command goes on: %s\n", id)
		return exitStatus(exitSignal + int(s.sig))
	}
	return err
}

// ended turns the end of a session into ours.
func (c *cli) ended(exit *client.Exit) error {
	if exit.Error != nil {
		fmt.Fprintf(c.err, "space: %s\n", plain(endOf(exit)))
	}
	if status := exitCode(*exit); status != 0 {
		return exitStatus(status)
	}
	return nil
}
