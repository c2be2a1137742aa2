package agent

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

const (
	stateCreated = agentv1.ProcessState_PROCESS_STATE_CREATED
	stateRunning = agentv1.ProcessState_PROCESS_STATE_RUNNING
	stateExited  = agentv1.ProcessState_PROCESS_STATE_EXITED
	stateFailed  = agentv1.ProcessState_PROCESS_STATE_FAILED
)

func TestRunToTheEnd(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	r := f.run(shell(`printf 'out\000\377'; printf err >&2; exit 7`))
	if r.stdout != "out\x00\xff" || r.stderr != "err" || r.gaps != 0 {
		t.Errorf("output %q, %q, %d gaps", r.stdout, r.stderr, r.gaps)
	}
	p := r.exit
	if p.GetState() != stateExited || p.ExitCode != 7 || p.Signal != "" || p.StdoutBytes != 5 || p.StderrBytes != 3 || p.Pid <= 0 {
		t.Errorf("exit %v", p)
	}
	if p.EndedAt.AsTime().Before(p.StartedAt.AsTime()) || time.Since(p.StartedAt.AsTime()) > time.Minute {
		t.Errorf("times %v to %v", p.StartedAt.AsTime(), p.EndedAt.AsTime())
	}
}

func TestSignals(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	// The group is signalled, not the first process alone: sh waits for its child.
	id := f.start(shell("sleep 1000; exit 3"))
	signal := func(name string) error {
		_, err := f.agent.SignalProcess(t.Context(), connect.NewRequest(&agentv1.SignalProcessRequest{ProcessId: id, Signal: name}))
		return err
	}
	for _, bad := range []string{"", "9", "TERM", "sigterm", "SIGRTMIN", "SIGNOPE"} {
		wantCode(t, signal(bad), sandbox.CodeInvalidArgument)
	}
	wantCode(t, signal("SIGWINCH"), "")
	wantCode(t, signal("SIGTERM"), "")
	if r := f.attach(id); r.exit.Signal != "SIGTERM" || r.exit.ExitCode != -1 || r.exit.ErrorCode != "" {
		t.Errorf("exit %v", r.exit)
	}
	wantCode(t, signal("SIGTERM"), sandbox.CodeNotRunning)
	id = f.create(shell("true"))
	wantCode(t, signal("SIGTERM"), sandbox.CodeNotRunning)
}

func TestTimeoutKillsTheGroup(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	spec := shell("trap '' TERM INT; sleep 1000 & echo $!; wait; wait")
	spec.TimeoutSeconds = 1.5 // enough for a busy machine to get as far as the echo
	r := f.run(spec)
	if r.exit.ErrorCode != "deadline_exceeded" || r.exit.Signal != "SIGKILL" || r.exit.ExitCode != -1 {
		t.Errorf("exit %v", r.exit)
	}
	child, err := strconv.Atoi(strings.TrimSpace(r.stdout))
	if err != nil {
		t.Fatal(err)
	}
	waitGone(t, child)
}

// waitGone waits until a process that is not our child is dead (a zombie that nobody collects counts as dead).
func waitGone(t *testing.T, pid int) {
	t.Helper()
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(pidfd)
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	if n, err := unix.Poll(fds, 10_000); n != 1 {
		t.Errorf("process %d lives: %v", pid, err)
	}
}

// TestDescendantsHoldThePipe: the session ends with its first process, at most DrainTime later, with all that was
// written until then; descendants live on.
func TestDescendantsHoldThePipe(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) { c.Limits.DrainTime = 100 * time.Millisecond })
	begin := time.Now()
	r := f.run(shell("sleep 1000 & echo $!; exit 5"))
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("the session took %v", took)
	}
	if r.exit.ExitCode != 5 {
		t.Errorf("exit %v", r.exit)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(r.stdout))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(pid, 0); err != nil {
		t.Errorf("the descendant is gone: %v", err)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Error(err)
	}
}

// TestTailBehindASlowReader: a reader that does not read holds the spool full while the process ends. Nothing of what
// the process had written is lost to it, and the end is not held up.
func TestTailBehindASlowReader(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) {
		c.Limits.SpoolPerStream, c.Limits.DrainTime = 4096, 50*time.Millisecond
	})
	id := f.create(shell("head -c 40000 /dev/zero"))
	p, err := f.server.table.get(id)
	if err != nil {
		t.Fatal(err)
	}
	r, err := p.output.newReader([]position{{stream: stdoutStream}}, true)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	f.server.table.start(p)
	n := 0
	f.waitEnded(id)
	for {
		piece, err := r.next(t.Context())
		if err != nil {
			break
		}
		n += len(piece.data)
	}
	if n != 40000 {
		t.Errorf("read %d of 40000", n)
	}
}

// waitEnded watches until a process has ended.
func (f *fixture) waitEnded(id string) *agentv1.Process {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 30*time.Second)
	defer cancel()
	w, err := f.agent.WatchProcesses(ctx, connect.NewRequest(&agentv1.WatchProcessesRequest{}))
	if err != nil {
		f.t.Fatal(err)
	}
	defer w.Close()
	for w.Receive() {
		if p := w.Msg().GetProcess(); p.GetProcessId() == id && (p.State == stateExited || p.State == stateFailed) {
			return p
		}
	}
	f.t.Fatalf("the watch ended: %v", w.Err())
	return nil
}

// TestAttachFromOffsets: many readers, each from its own offset; without follow a reader ends at the current end.
func TestAttachFromOffsets(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	id := f.create(&agentv1.ProcessSpec{Argv: []string{"cat"}, Stdin: true})
	stream, err := f.agent.Attach(t.Context(), connect.NewRequest(&agentv1.AttachRequest{ProcessId: id, Follow: true, Positions: bothStreams()}))
	if err != nil || !stream.Receive() {
		t.Fatalf("attach: %v", err)
	}
	defer stream.Close()
	if s := stream.Msg().GetStarted(); s.GetState() != stateCreated {
		t.Errorf("started %v without start", s)
	}
	f.server.table.start(f.process(id))
	if _, err := f.agent.WriteStdin(t.Context(), connect.NewRequest(&agentv1.WriteStdinRequest{ProcessId: id, Data: []byte("0123456789")})); err != nil {
		t.Fatal(err)
	}
	for got := ""; got != "0123456789"; got += string(stream.Msg().GetData().GetData()) {
		if !stream.Receive() {
			t.Fatalf("after %q: %v", got, stream.Err())
		}
	}
	part := func(offset uint64, end bool) string {
		s, err := f.agent.Attach(t.Context(), connect.NewRequest(&agentv1.AttachRequest{ProcessId: id,
			Positions: []*agentv1.StreamPosition{{Stream: agentv1.OutputStream_OUTPUT_STREAM_STDOUT, Offset: offset, End: end}}}))
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		return f.collect(s).stdout
	}
	if a, b, c := part(0, false), part(7, false), part(0, true); a != "0123456789" || b != "789" || c != "" {
		t.Errorf("parts %q, %q, %q", a, b, c)
	}
	for _, bad := range [][]*agentv1.StreamPosition{
		{{Stream: agentv1.OutputStream_OUTPUT_STREAM_STDOUT, Offset: 11}},
		{{Stream: 77}},
		{{Stream: agentv1.OutputStream_OUTPUT_STREAM_STDOUT}, {Stream: agentv1.OutputStream_OUTPUT_STREAM_STDOUT}},
	} {
		s, err := f.agent.Attach(t.Context(), connect.NewRequest(&agentv1.AttachRequest{ProcessId: id, Positions: bad}))
		if err != nil {
			t.Fatal(err)
		}
		if s.Receive() {
			t.Errorf("positions %v were accepted", bad)
		}
		wantCode(t, s.Err(), sandbox.CodeInvalidArgument)
		s.Close()
	}
}

func (f *fixture) process(id string) *process {
	f.t.Helper()
	p, err := f.server.table.get(id)
	if err != nil {
		f.t.Fatal(err)
	}
	return p
}

// TestNoReaderNoWait: without a reader a process that says more than the spool keeps is not held up.
func TestNoReaderNoWait(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) { c.Limits.SpoolPerStream = 10_000 })
	id := f.start(shell("head -c 3000000 /dev/zero; echo end"))
	p := f.waitEnded(id)
	if p.StdoutBytes != 3_000_004 || p.TruncatedBytes != 3_000_004-10_000 {
		t.Errorf("%v", p)
	}
	r := f.attach(id)
	if r.gaps != 1 || len(r.stdout) != 10_000 || !strings.HasSuffix(r.stdout, "end\n") {
		t.Errorf("%d gaps, %d bytes", r.gaps, len(r.stdout))
	}
}
