package agent

import (
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

// process is one entry of the table: a process that is to run, runs or has ended.
type process struct {
	id        sandbox.ProcessID
	seq       int64    // order of creation
	digest    [32]byte // of its specification
	specSize  int64
	stdinPipe bool
	output    *outputLog
	stdin     *stdin
	start     sync.Once            // callers of start wait for its end
	spec      *agentv1.ProcessSpec // nil once started: only start may touch it

	mu      sync.Mutex
	status  *agentv1.Process // without the byte counts; replaced, never changed
	reaped  bool             // the first process has ended: its pid may soon be another's
	expired bool             // timeout_seconds has killed it
	acked   bool

	size     *agentv1.TerminalSize // nil without a terminal; what it has, or starts with
	terminal *os.File              // nil until started, and after the end
}

func newProcess(id sandbox.ProcessID, spec *agentv1.ProcessSpec, output *outputLog) *process {
	return &process{id: id, digest: specDigest(spec), specSize: int64(proto.Size(spec)), stdinPipe: spec.Stdin || spec.Pty != nil,
		size: spec.Pty, spec: spec, output: output, stdin: newStdin(),
		status: &agentv1.Process{ProcessId: string(id), State: agentv1.ProcessState_PROCESS_STATE_CREATED}}
}

// snapshot is the process as it is now.
func (p *process) snapshot() *agentv1.Process {
	p.mu.Lock()
	m := proto.CloneOf(p.status)
	p.mu.Unlock()
	ends, dropped := p.output.sizes()
	m.StdoutBytes, m.StderrBytes, m.PtyBytes, m.TruncatedBytes = ends[stdoutStream], ends[stderrStream], ends[ptyStream], dropped
	m.StdinBytes, m.StdinClosed = p.stdin.state()
	m.StdinClosed = m.StdinClosed || !p.stdinPipe
	return m
}

func (p *process) state() agentv1.ProcessState {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status.State
}

// ended reports whether the state is final.
func (p *process) ended() bool {
	s := p.state()
	return s == agentv1.ProcessState_PROCESS_STATE_EXITED || s == agentv1.ProcessState_PROCESS_STATE_FAILED
}

// setRunning notes that the process has been started.
func (p *process) setRunning(pid int, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status = proto.CloneOf(p.status)
	p.status.State = agentv1.ProcessState_PROCESS_STATE_RUNNING
	p.status.Pid = int32(pid)
	p.status.StartedAt = timestamppb.New(at)
}

// setTerminal notes the terminal of a process that starts, with the size that was last asked for, or that it is gone.
func (p *process) setTerminal(terminal *os.File) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.terminal = terminal
	if terminal != nil {
		// It has been opened with a size; this is for one that was asked for meanwhile.
		_ = control(terminal, func(fd int) error { return setSize(fd, p.size) })
	}
}

// terminalSize is the size that the process's terminal has or starts with; nil without one.
func (p *process) terminalSize() *agentv1.TerminalSize {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.size
}

// resize changes the size of the process's terminal.
func (p *process) resize(size *agentv1.TerminalSize) error {
	if err := checkSize("size", size); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch state := p.status.State; {
	case p.size == nil:
		return &sandbox.Error{Code: sandbox.CodeInvalidState, Message: "the process has no terminal",
			Cause: "it was created without pty", Remedy: `create it with "pty": {"cols": 80, "rows": 24}`}
	case state == agentv1.ProcessState_PROCESS_STATE_CREATED:
		p.size = proto.CloneOf(size)
		return nil
	case state != agentv1.ProcessState_PROCESS_STATE_RUNNING || p.terminal == nil:
		return notRunning(state)
	}
	p.size = proto.CloneOf(size)
	return control(p.terminal, func(fd int) error { return setSize(fd, size) })
}

// setFailed notes that the process could not be started.
func (p *process) setFailed(code, message string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status = proto.CloneOf(p.status)
	p.status.State = agentv1.ProcessState_PROCESS_STATE_FAILED
	p.status.ErrorCode, p.status.ErrorMessage = code, message
	p.status.EndedAt = timestamppb.Now()
}

// setExited notes how the process ended.
func (p *process) setExited(exit Exit, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status = proto.CloneOf(p.status)
	p.status.State = agentv1.ProcessState_PROCESS_STATE_EXITED
	p.status.ExitCode = int32(exit.Code)
	p.status.EndedAt = timestamppb.New(at)
	if exit.Signal != 0 {
		p.status.ExitCode, p.status.Signal = -1, signalName(exit.Signal)
	}
	if p.expired {
		p.status.ErrorCode = string(sandbox.CodeDeadline)
		p.status.ErrorMessage = "timeout_seconds was over"
	}
}

// setReaped is called while the first process is a zombie: no signal is sent to its number from now on.
func (p *process) setReaped() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reaped = true
}

// signal sends sig to the process group. The first process leads it and still has its number, so no other group can
// be meant.
func (p *process) signal(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.status.State != agentv1.ProcessState_PROCESS_STATE_RUNNING || p.reaped {
		return notRunning(p.status.State)
	}
	if sig == unix.SIGKILL {
		p.killForeground()
	}
	if err := unix.Kill(-int(p.status.Pid), sig); err != nil {
		return sandbox.Errorf(sandbox.CodePermissionDenied, "the signal could not be sent: %w", err)
	}
	return nil
}

// killForeground kills what runs in the foreground of the process's terminal: a shell with job control has put it into
// a group of its own. Call with the lock, while the process runs.
func (p *process) killForeground() {
	if p.terminal == nil {
		return
	}
	_ = control(p.terminal, func(fd int) error { // without one there is nothing to kill
		group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
		if err == nil && group > 1 && group != int(p.status.Pid) {
			err = unix.Kill(-group, unix.SIGKILL)
		}
		return err
	})
}

// expire kills the process group because its time is over.
func (p *process) expire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.status.State == agentv1.ProcessState_PROCESS_STATE_RUNNING && !p.reaped {
		p.expired = true
		p.killForeground()
		_ = unix.Kill(-int(p.status.Pid), unix.SIGKILL) // it runs and it is ours
	}
}

// setAcked marks an ended process as recorded elsewhere.
func (p *process) setAcked() {
	if !p.ended() {
		return
	}
	p.mu.Lock()
	p.acked = true
	p.mu.Unlock()
	p.output.acknowledge()
}

func (p *process) isAcked() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.acked
}

func notRunning(state agentv1.ProcessState) error {
	e := &sandbox.Error{Code: sandbox.CodeNotRunning, Message: "the process is not running"}
	switch state {
	case agentv1.ProcessState_PROCESS_STATE_CREATED:
		e.Cause, e.Remedy = "it has not been started", "attach to it or start it first"
	case agentv1.ProcessState_PROCESS_STATE_FAILED:
		e.Cause, e.Remedy = "it could not be started", "look at its error"
	default:
		e.Cause, e.Remedy = "it has ended", "look at its exit code"
	}
	return e
}
