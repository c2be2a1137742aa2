package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/space-sandbox/space/internal/sandbox"
)

// stdin is the standard input of one process.
type stdin struct {
	turn chan struct{} // holds one token: who has it writes

	mu       sync.Mutex
	pipe     *os.File // nil until started, and when closed
	terminal bool     // the pipe is a terminal's
	midLine  bool     // what was written last does not end a line
	started  bool
	accepted uint64
	closed   bool
}

func newStdin() *stdin {
	s := &stdin{turn: make(chan struct{}, 1)}
	s.turn <- struct{}{}
	return s
}

// open gives the pipe's write end, or a terminal; nil when the process has neither. It then belongs to s.
func (s *stdin) open(pipe *os.File, terminal bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.started, s.terminal = true, terminal
	s.pipe, s.closed = pipe, pipe == nil
}

// close closes the pipe; a write under way ends. Idempotent.
func (s *stdin) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.pipe != nil {
		_ = s.pipe.Close() // a pipe has nothing to flush
		s.pipe = nil
	}
}

func (s *stdin) state() (accepted uint64, closed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.accepted, s.closed
}

// write appends data, and with eof closes the pipe after it. Calls write one after the other, in the order of their
// arrival; a terminal stays open, its end-of-file character is typed. While the pipe is full it waits, until ctx is done; what was accepted until then is counted. It returns
// the number of bytes accepted in all.
func (s *stdin) write(ctx context.Context, data []byte, eof bool, offset *uint64) (uint64, error) {
	select {
	case <-s.turn:
		defer func() { s.turn <- struct{}{} }()
	case <-ctx.Done():
		return s.count(), stoppedError(ctx)
	}
	pipe, err := s.prepare(offset)
	if err != nil {
		return s.count(), err
	}
	if err := s.writePipe(ctx, pipe, data); err != nil {
		return s.count(), err
	}
	if !eof {
		return s.count(), nil
	}
	if s.terminal {
		return s.typeEOF(ctx, pipe)
	}
	s.close()
	return s.count(), nil
}

// typeEOF types the character that ends input on a terminal. It is nobody's data and is not counted. In the middle of a
// line the first one only hands over what there is of the line; the second ends the input.
func (s *stdin) typeEOF(ctx context.Context, terminal *os.File) (uint64, error) {
	s.mu.Lock()
	midLine := s.midLine
	s.midLine = false
	s.mu.Unlock()
	c, err := endOfFile(terminal, midLine)
	if err == nil {
		_, err = s.put(ctx, terminal, c)
	}
	return s.count(), err
}

func (s *stdin) count() uint64 {
	n, _ := s.state()
	return n
}

// prepare checks that the write is meant for here and now.
func (s *stdin) prepare(offset *uint64) (*os.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if offset != nil && *offset != s.accepted {
		return nil, &sandbox.Error{Code: sandbox.CodeStdinOffset, Message: "standard input is at another offset",
			Cause:  fmt.Sprintf("%d bytes have been accepted, the write is for offset %d", s.accepted, *offset),
			Remedy: "go on from the bytes that have been accepted",
			Fields: []sandbox.FieldError{{Field: "stdin_bytes", Message: fmt.Sprint(s.accepted)}}}
	}
	if !s.started {
		return nil, &sandbox.Error{Code: sandbox.CodeNotRunning, Message: "the process is not running",
			Cause: "it has not been started", Remedy: "attach to it or start it first"}
	}
	if s.closed {
		return nil, stdinClosed()
	}
	return s.pipe, nil
}

// writePipe writes data and counts what the pipe took.
func (s *stdin) writePipe(ctx context.Context, pipe *os.File, data []byte) error {
	n, err := s.put(ctx, pipe, data)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.accepted += uint64(n)
	if n > 0 {
		s.midLine = data[n-1] != '\n' && data[n-1] != '\r'
	}
	return err
}

// put writes data and returns how much of it the pipe took. The deadline is how ctx ends a write that waits.
func (s *stdin) put(ctx context.Context, pipe *os.File, data []byte) (int, error) {
	if len(data) == 0 {
		return 0, nil
	}
	if err := pipe.SetWriteDeadline(time.Time{}); err != nil {
		return 0, stdinClosed()
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = pipe.SetWriteDeadline(time.Unix(1, 0)) // fails only when it is closed, which ends the write too
		close(stopped)
	})
	n, err := pipe.Write(data)
	if !stop() {
		<-stopped // so that it cannot hit the next write
	}
	switch {
	case err == nil:
		return n, nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return n, stoppedError(ctx)
	}
	s.close() // nobody reads any more
	return n, stdinClosed()
}

func stdinClosed() error {
	return &sandbox.Error{Code: sandbox.CodeStdinClosed, Message: "standard input is closed",
		Cause: "the process has ended or closed it, it was closed by eof, or the process was created without it"}
}

// stoppedError says why a call ended before it was done.
func stoppedError(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return &sandbox.Error{Code: sandbox.CodeDeadline, Message: "the call's time is over", Err: ctx.Err()}
	}
	if errors.Is(context.Cause(ctx), errEnding) {
		return &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the agent is ending", Remedy: "try again later"}
	}
	return &sandbox.Error{Code: sandbox.CodeCanceled, Message: "the call was ended", Err: context.Cause(ctx)}
}
