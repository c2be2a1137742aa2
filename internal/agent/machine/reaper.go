package machine

import (
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/agent"
)

// Reaper collects every child of PID 1: those it started, whose exits it tells, and orphans, which come to PID 1 when
// their parents end. Nothing else in the process may wait for children.
type Reaper struct {
	log *slog.Logger

	// mu is held from before a fork until its pid is in the table, so that run never takes a child that has just
	// started for an orphan.
	mu       sync.Mutex
	children map[int]func(agent.Exit)
}

var _ agent.Reaper = (*Reaper)(nil)

func newReaper(log *slog.Logger) *Reaper {
	return &Reaper{log: log, children: map[int]func(agent.Exit){}}
}

// Start implements agent.Reaper.
func (r *Reaper) Start(path string, argv []string, attr *syscall.ProcAttr, ended func(agent.Exit)) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := syscall.ForkExec(path, argv, attr)
	if err != nil {
		return 0, err
	}
	r.children[pid] = ended
	return pid, nil
}

// Run collects children for ever. It returns only when the kernel refuses to say which have ended.
func (r *Reaper) Run() error {
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, unix.SIGCHLD)
	defer signal.Stop(changed)
	for {
		pid, exit, err := agent.PeekExit(unix.P_ALL, 0)
		switch {
		case errors.Is(err, unix.ECHILD):
			<-changed // there is no child; when one ends, this tells
		case err != nil:
			return err
		default:
			r.collect(pid, exit)
		}
	}
}

// collect tells how a child ended, then lets its pid go.
func (r *Reaper) collect(pid int, exit agent.Exit) {
	r.mu.Lock()
	ended := r.children[pid]
	delete(r.children, pid)
	if ended == nil {
		// An orphan, or a child whose exec failed and that ForkExec has collected itself: so this must not block.
		_, err := unix.Wait4(pid, nil, unix.WNOHANG, nil)
		r.mu.Unlock()
		if err != nil && !errors.Is(err, unix.ECHILD) {
			r.log.Warn("collect an orphan", "pid", pid, "error", err)
		}
		return
	}
	r.mu.Unlock()
	ended(exit)
	if err := agent.Collect(pid); err != nil {
		r.log.Warn("collect a process", "pid", pid, "error", err)
	}
}
