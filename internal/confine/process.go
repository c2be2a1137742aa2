package confine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrClosed is returned by Wait after Close.
var ErrClosed = errors.New("the process handle is closed")

// Status is how a process ended.
type Status struct {
	Known    bool           // false for a process that is not our child
	ExitCode int            // when no signal ended it
	Signal   syscall.Signal // 0 when it exited by itself
}

func (s Status) String() string {
	switch {
	case !s.Known:
		return "exit status unknown"
	case s.Signal != 0:
		return "signal: " + s.Signal.String()
	}
	return fmt.Sprintf("exit status %d", s.ExitCode)
}

// Process is a running process that Start made or Adopt found. Safe for concurrent use.
type Process struct {
	id     Identity
	group  *Group
	pidfd  *os.File
	done   chan struct{} // closed when it has ended; status is valid then
	status Status
	closed chan struct{}
	once   sync.Once
	over   chan struct{} // closed when nobody waits for the end any more: done is closed, or never will be
}

// watch makes a Process of a non-blocking pidfd, which it takes over.
func watch(id Identity, group *Group, pidfd *os.File) *Process {
	p := &Process{id: id, group: group, pidfd: pidfd, done: make(chan struct{}), closed: make(chan struct{}), over: make(chan struct{})}
	go p.reap()
	return p
}

// Identity is what Adopt needs to find the process again.
func (p *Process) Identity() Identity { return p.id }

// PID is its process id, for messages only: it may be another's after the end.
func (p *Process) PID() int { return p.id.PID }

// Group is the control group it was started in, or nil.
func (p *Process) Group() *Group { return p.group }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait blocks until the process has ended (and is reaped if it is our child), Close is called or ctx is done.
func (p *Process) Wait(ctx context.Context) (Status, error) {
	select {
	case <-p.done:
		return p.status, nil
	default:
	}
	select {
	case <-p.done:
		return p.status, nil
	case <-p.closed:
		return Status{}, ErrClosed
	case <-ctx.Done():
		return Status{}, ctx.Err()
	}
}

// Signal sends a signal; to a process that has ended it does nothing.
func (p *Process) Signal(sig syscall.Signal) error {
	conn, err := p.pidfd.SyscallConn()
	if err != nil {
		return fmt.Errorf("confine: signal: %w", err)
	}
	var sent error
	err = conn.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), sig, nil, 0) })
	select {
	case <-p.done: // the descriptor is closed after the end
		return nil
	default:
	}
	if err = errors.Join(err, sent); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("confine: signal to %d: %w", p.id.PID, err)
	}
	return nil
}

// Kill ends the process and everything in its group, and returns when they are gone.
func (p *Process) Kill(ctx context.Context) error {
	if err := p.Signal(unix.SIGKILL); err != nil {
		return err
	}
	if p.group != nil {
		if err := p.group.Kill(ctx); err != nil {
			return err
		}
	}
	select {
	case <-p.over:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-p.done:
		return nil
	default:
		return ErrClosed
	}
}

// Close gives up the handle; the process goes on. Waiting callers get ErrClosed. A child of ours is still reaped when
// it ends.
func (p *Process) Close() error {
	p.once.Do(func() {
		close(p.closed)
		if !p.isChild() {
			p.pidfd.Close() // wakes reap
		}
	})
	return nil
}

// reap waits for the end by the runtime's poller: a pidfd becomes readable then, and no thread is spent on waiting.
func (p *Process) reap() {
	defer close(p.over)
	conn, err := p.pidfd.SyscallConn()
	if err != nil {
		return
	}
	var status Status
	err = conn.Read(func(fd uintptr) bool {
		var ended bool
		status, ended = poll(int(fd))
		return ended
	})
	if err != nil {
		return // closed
	}
	p.status = status
	close(p.done)
	p.pidfd.Close()
}

func (p *Process) isChild() bool {
	conn, err := p.pidfd.SyscallConn()
	if err != nil {
		return false
	}
	child := false
	_ = conn.Control(func(fd uintptr) {
		var info unix.Siginfo
		child = unix.Waitid(unix.P_PIDFD, int(fd), &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil) == nil
	})
	return child
}

// poll reports whether the process behind the descriptor has ended, and reaps it if it is our child.
func poll(fd int) (Status, bool) {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return Status{}, false
		}
		break
	}
	var info unix.Siginfo
	for {
		err := unix.Waitid(unix.P_PIDFD, fd, &info, unix.WEXITED, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil { // ECHILD: another's child, or reaped by another handle of ours
			return Status{}, true
		}
		break
	}
	// si_status lies at offset 24 on every 64-bit Linux; x/sys does not name the fields of the union.
	value := *(*int32)(unsafe.Add(unsafe.Pointer(&info), 24))
	if info.Code == 1 { // CLD_EXITED
		return Status{Known: true, ExitCode: int(value)}, true
	}
	return Status{Known: true, ExitCode: -1, Signal: syscall.Signal(value)}, true
}
