package agent

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
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

// TestOwnSession: each process leads a session and group of its own, without a terminal, with /dev/null as input.
func TestOwnSession(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	r := f.run(shell(`read -r pid comm state ppid pgrp session tty rest < /proc/$$/stat; echo $(( pid == pgrp )) $(( pid == session )) $tty; readlink /proc/$$/fd/0; exec ls /proc/self/fd`))
	lines := strings.Fields(r.stdout)
	if len(lines) < 4 || strings.Join(lines[:4], " ") != "1 1 0 /dev/null" {
		t.Fatalf("got %q", r.stdout)
	}
	inherited := 0 // what the test process itself was started with
	for fd := 3; fd < 1024; fd++ {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			inherited++
		}
	}
	if n := len(lines) - 4; n != 4+inherited { // 0, 1, 2 and the directory that ls reads
		t.Errorf("the process has descriptors %v", lines[4:])
	}
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	spec := &agentv1.ProcessSpec{Argv: []string{"env"}, Env: map[string]string{"A": "x y\n$(z)", "PATH": "/usr/bin:/bin"}}
	r := f.run(spec)
	for _, want := range []string{"A=x y\n$(z)\n", "PATH=/usr/bin:/bin\n", "HOME=", "USER=", "LOGNAME="} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("no %q in %q", want, r.stdout)
		}
	}
	if r := f.run(&agentv1.ProcessSpec{Argv: []string{"env"}}); !strings.Contains(r.stdout, "PATH="+defaultPath+"\n") {
		t.Errorf("no default PATH in %q", r.stdout)
	}
}

func TestWhyItCouldNotStart(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	plain := f.write("plain", "no program")
	script := f.write("script", "#!/no/such/interpreter\n")
	garbage := f.write("garbage", "\x01\x02\x03\x04")
	for _, p := range []string{script, garbage} {
		if err := os.Chmod(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		spec *agentv1.ProcessSpec
		code string
	}{
		"name":        {&agentv1.ProcessSpec{Argv: []string{"no-such-program"}}, startCommandNotFound},
		"path":        {&agentv1.ProcessSpec{Argv: []string{"/no/such/program"}}, startCommandNotFound},
		"empty PATH":  {&agentv1.ProcessSpec{Argv: []string{"sh"}, Env: map[string]string{"PATH": "/nowhere"}}, startCommandNotFound},
		"cwd":         {&agentv1.ProcessSpec{Argv: []string{"true"}, Cwd: "/no/such/dir"}, startCwdNotFound},
		"cwd a file":  {&agentv1.ProcessSpec{Argv: []string{"true"}, Cwd: plain}, startCwdNotFound},
		"user":        {&agentv1.ProcessSpec{Argv: []string{"true"}, User: "no-such-user"}, startUserNotFound},
		"huge uid":    {&agentv1.ProcessSpec{Argv: []string{"true"}, User: "4294967295"}, startUserNotFound},
		"not a prog":  {&agentv1.ProcessSpec{Argv: []string{plain}}, startPermissionDenied},
		"a directory": {&agentv1.ProcessSpec{Argv: []string{"/"}}, startPermissionDenied},
		"interpreter": {&agentv1.ProcessSpec{Argv: []string{script}}, startFailed},
		"garbage":     {&agentv1.ProcessSpec{Argv: []string{garbage}}, startFailed},
	} {
		r := f.run(c.spec)
		if r.exit.GetState() != stateFailed || r.exit.ErrorCode != c.code || r.exit.ErrorMessage == "" || r.exit.EndedAt == nil {
			t.Errorf("%s: %v, want %s", name, r.exit, c.code)
		}
	}
}

// TestOtherUsers: with privileges a process is the user that was asked for, in all ids; without, it is refused.
func TestOtherUsers(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	secret := f.write("secret/program", "#!/bin/sh\n")
	if err := os.Chmod(filepath.Dir(secret), 0o700); err != nil {
		t.Fatal(err)
	}
	const show = `grep -E '^(Uid|Gid|Groups|CapEff)' /proc/$$/status | tr -s ' \t' ' '; echo $HOME $USER $PWD`
	numeric, named := shell(show), shell(show)
	numeric.User, named.User = nobody, "worker"
	if !privileged() {
		if os.Geteuid() == 65534 {
			t.Fatal("run this test as root or as another user than 65534")
		}
		for _, spec := range []*agentv1.ProcessSpec{numeric, named} {
			if r := f.run(spec); r.exit.ErrorCode != startPermissionDenied {
				t.Errorf("user %s without privileges: %v", spec.User, r.exit)
			}
		}
		return
	}
	ids := "Uid: 65534 65534 65534 65534\nGid: 65534 65534 65534 65534\n"
	none := "CapEff: 0000000000000000\n"
	want := ids + "Groups: 4242 65534 \n" + none + f.dir + " worker " + f.dir + "\n"
	for _, spec := range []*agentv1.ProcessSpec{numeric, named} { // passwd of the fixture has both
		if r := f.run(spec); r.stdout != want {
			t.Errorf("user %s: got %q, want %q", spec.User, r.stdout, want)
		}
	}
	unknown := shell(show)
	unknown.User = "65533"
	if r := f.run(unknown); !strings.HasSuffix(r.stdout, none+"/ 65533 /\n") || !strings.HasPrefix(r.stdout, "Uid: 65533") {
		t.Errorf("uid without an entry: %q", r.stdout)
	}
	for name, spec := range map[string]*agentv1.ProcessSpec{
		"cwd":     {Argv: []string{"true"}, User: nobody, Cwd: filepath.Dir(secret)},
		"program": {Argv: []string{secret}, User: nobody},
	} {
		if r := f.run(spec); r.exit.ErrorCode != startPermissionDenied {
			t.Errorf("%s out of reach: %v", name, r.exit)
		}
	}
}

// TestUserDatabaseMissing: root and numeric users need no passwd file.
func TestUserDatabaseMissing(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) { c.Etc = "/no/such/dir" })
	if r := f.run(shell("echo $USER")); r.exit.GetExitCode() != 0 || r.stdout == "\n" {
		t.Errorf("own user: %q, %v", r.stdout, r.exit)
	}
	db := userDatabase{dir: "/no/such/dir"}
	if a, err := db.lookup(strconv.Itoa(os.Geteuid())); err != nil || a.uid != os.Geteuid() {
		t.Errorf("own uid: %+v, %v", a, err)
	}
}

// TestUserDatabaseSpecialFile: a fifo in place of passwd must not hold up the agent.
func TestUserDatabaseSpecialFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(dir, "passwd"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := (userDatabase{dir: dir}).lookup("root"); err == nil {
		t.Error("a fifo was taken for the user database")
	}
}

func TestCreateIsIdempotent(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	id := string(sandbox.NewProcessID())
	create := func(spec *agentv1.ProcessSpec) error {
		_, err := f.agent.CreateProcess(t.Context(), connect.NewRequest(&agentv1.CreateProcessRequest{ProcessId: id, Spec: spec}))
		return err
	}
	spec := shell("echo x >> " + filepath.Join(f.dir, "count"))
	spec.Env = map[string]string{"A": "1", "B": "2", "C": "3"}
	wantCode(t, create(spec), "")
	wantCode(t, create(spec), "")
	wantCode(t, create(shell("other")), sandbox.CodeIdempotencyConflict)
	if p := f.get(id); p.State != stateCreated {
		t.Errorf("state %v before the start", p.State)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := f.agent.StartProcess(t.Context(), connect.NewRequest(&agentv1.StartProcessRequest{ProcessId: id})); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	f.attach(id)
	wantCode(t, create(spec), "")
	wantCode(t, create(shell("other")), sandbox.CodeIdempotencyConflict)
	f.attach(id)
	if n, err := os.ReadFile(filepath.Join(f.dir, "count")); err != nil || string(n) != "x\n" {
		t.Errorf("it ran %q times, %v", n, err)
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
	spec.TimeoutSeconds = 0.2
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

func TestStdin(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	id := f.create(&agentv1.ProcessSpec{Argv: []string{"cat"}, Stdin: true})
	write := func(data string, eof bool, offset *uint64) (uint64, error) {
		res, err := f.agent.WriteStdin(t.Context(), connect.NewRequest(&agentv1.WriteStdinRequest{ProcessId: id, Data: []byte(data), Eof: eof, Offset: offset}))
		if err != nil {
			return 0, err
		}
		return res.Msg.StdinBytes, nil
	}
	_, err := write("early", false, nil)
	wantCode(t, err, sandbox.CodeNotRunning)
	if _, err := f.agent.StartProcess(t.Context(), connect.NewRequest(&agentv1.StartProcessRequest{ProcessId: id})); err != nil {
		t.Fatal(err)
	}
	zero, three := uint64(0), uint64(3)
	if n, err := write("abc", false, &zero); n != 3 || err != nil {
		t.Errorf("first write: %d, %v", n, err)
	}
	_, err = write("abc", false, &zero)
	wantCode(t, err, sandbox.CodeStdinOffset)
	if e := sandbox.AsError(err); len(e.Fields) != 1 || e.Fields[0].Field != "stdin_bytes" || e.Fields[0].Message != "3" {
		t.Errorf("the mismatch does not tell the offset: %+v", e)
	}
	if n, err := write("\x00\xff", true, &three); n != 5 || err != nil {
		t.Errorf("last write: %d, %v", n, err)
	}
	_, err = write("late", false, nil)
	wantCode(t, err, sandbox.CodeStdinClosed)
	if r := f.attach(id); r.stdout != "abc\x00\xff" || r.exit.StdinBytes != 5 || !r.exit.StdinClosed {
		t.Errorf("%q, %v", r.stdout, r.exit)
	}
	id = f.start(shell("exec sleep 1000"))
	_, err = write("x", false, nil)
	wantCode(t, err, sandbox.CodeStdinClosed)
}

// TestStdinFullPipe: a write to a process that does not read waits as long as the call may last, and says how much
// was accepted; the next write goes on from there. The end of the process ends the wait.
func TestStdinFullPipe(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	id := f.start(&agentv1.ProcessSpec{Argv: []string{"sleep", "1000"}, Stdin: true})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := f.agent.WriteStdin(ctx, connect.NewRequest(&agentv1.WriteStdinRequest{ProcessId: id, Data: make([]byte, 1<<20)}))
	wantCode(t, err, sandbox.CodeDeadline)
	done := make(chan error, 1)
	go func() {
		_, err := f.agent.WriteStdin(t.Context(), connect.NewRequest(&agentv1.WriteStdinRequest{ProcessId: id, Data: make([]byte, 1<<20)}))
		done <- err
	}()
	n := f.get(id).StdinBytes
	for n == 0 && t.Context().Err() == nil { // the agent ends the first write a moment after its caller
		n = f.get(id).StdinBytes
	}
	if n >= 1<<20 {
		t.Errorf("%d bytes accepted by a full pipe", n)
	}
	if _, err := f.agent.SignalProcess(t.Context(), connect.NewRequest(&agentv1.SignalProcessRequest{ProcessId: id, Signal: "SIGKILL"})); err != nil {
		t.Fatal(err)
	}
	wantCode(t, <-done, sandbox.CodeStdinClosed)
}

// TestStdinOrder: concurrent writes are not mixed.
func TestStdinOrder(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	id := f.start(&agentv1.ProcessSpec{Argv: []string{"cat"}, Stdin: true})
	const size = 200_000
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			_, err := f.agent.WriteStdin(t.Context(), connect.NewRequest(&agentv1.WriteStdinRequest{
				ProcessId: id, Data: bytes.Repeat([]byte{byte('a' + i)}, size)}))
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if _, err := f.agent.WriteStdin(t.Context(), connect.NewRequest(&agentv1.WriteStdinRequest{ProcessId: id, Eof: true})); err != nil {
		t.Fatal(err)
	}
	r := f.attach(id)
	if len(r.stdout) != 4*size {
		t.Fatalf("%d bytes", len(r.stdout))
	}
	for i := range 4 {
		if part := r.stdout[i*size : (i+1)*size]; strings.Count(part, part[:1]) != size {
			t.Errorf("part %d is mixed", i)
		}
	}
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

func TestWatch(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	old := f.start(shell("exit 1"))
	f.waitEnded(old)
	acked := f.start(shell("exit 2"))
	f.waitEnded(acked)
	if _, err := f.agent.AckProcesses(t.Context(), connect.NewRequest(&agentv1.AckProcessesRequest{
		ProcessIds: []string{acked, string(sandbox.NewProcessID())}})); err != nil {
		t.Fatal(err)
	}
	w, err := f.agent.WatchProcesses(t.Context(), connect.NewRequest(&agentv1.WatchProcessesRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if !w.Receive() || w.Msg().GetProcess().GetProcessId() != old || w.Msg().GetProcess().ExitCode != 1 {
		t.Fatalf("first event %v", w.Msg())
	}
	if !w.Receive() || !w.Msg().GetSynced() {
		t.Fatalf("second event %v", w.Msg())
	}
	id := f.create(shell("exit 9"))
	f.attach(id)
	last := stateCreated
	for last != stateExited {
		if !w.Receive() {
			t.Fatalf("the watch ended: %v", w.Err())
		}
		p := w.Msg().GetProcess()
		if p.GetProcessId() != id || p.State < last {
			t.Fatalf("event %v after state %v", w.Msg(), last)
		}
		if last = p.State; last == stateExited && p.ExitCode != 9 {
			t.Errorf("exit code %d", p.ExitCode)
		}
	}
	if p := f.get(acked); p.ExitCode != 2 {
		t.Errorf("the result of an acknowledged process is gone too early: %v", p)
	}
}

// TestSlowWatcher: a watcher that does not read blocks nobody, and then gets every final state.
func TestSlowWatcher(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	blocked, release := make(chan struct{}), make(chan struct{})
	seen := map[string]agentv1.ProcessState{}
	const count = 50
	done := make(chan error, 1)
	go func() {
		first := true
		done <- f.server.table.watch(ctx, func(p *agentv1.Process) error {
			if first {
				first = false
				close(blocked)
				<-release
			}
			if p != nil {
				seen[p.ProcessId] = p.State
			}
			ended := 0
			for _, s := range seen {
				if s == stateExited {
					ended++
				}
			}
			if ended == count {
				cancel()
			}
			return nil
		})
	}()
	<-blocked
	for range count {
		f.run(shell("true"))
	}
	close(release)
	<-done
	if len(seen) != count {
		t.Errorf("%d of %d processes seen", len(seen), count)
	}
}

// TestTableIsBounded: ended processes make room, acknowledged ones first; live ones do not.
func TestTableIsBounded(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) { c.Limits.Processes = 3 })
	a, b := f.start(shell("true")), f.start(shell("true"))
	f.waitEnded(a)
	f.waitEnded(b)
	if _, err := f.agent.AckProcesses(t.Context(), connect.NewRequest(&agentv1.AckProcessesRequest{ProcessIds: []string{b}})); err != nil {
		t.Fatal(err)
	}
	live := f.start(shell("exec sleep 1000"))
	f.create(shell("true"))
	_, err := f.agent.GetProcess(t.Context(), connect.NewRequest(&agentv1.GetProcessRequest{ProcessId: b}))
	wantCode(t, err, sandbox.CodeNotFound)
	f.get(a)
	f.create(shell("true"))
	_, err = f.agent.GetProcess(t.Context(), connect.NewRequest(&agentv1.GetProcessRequest{ProcessId: a}))
	wantCode(t, err, sandbox.CodeNotFound)
	_, err = f.agent.CreateProcess(t.Context(), connect.NewRequest(&agentv1.CreateProcessRequest{
		ProcessId: string(sandbox.NewProcessID()), Spec: shell("true")}))
	wantCode(t, err, sandbox.CodeCapacity)
	if p := f.get(live); p.State != stateRunning {
		t.Errorf("%v", p)
	}
}

// TestManyCommandsLeakNothing runs 1000 short commands and compares descriptors and goroutines. It is not parallel:
// it counts what belongs to the whole test process.
func TestManyCommandsLeakNothing(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.Limits.Processes = 100 })
	batch := func(n int) {
		for range n {
			if r := f.run(shell("echo hello")); r.stdout != "hello\n" || r.exit.ExitCode != 0 {
				t.Fatalf("%q, %v", r.stdout, r.exit)
			}
		}
	}
	batch(100)
	fds, goroutines := countFDs(t), runtime.NumGoroutine()
	batch(1000)
	for attempt := 0; ; attempt++ { // streams of the last calls may still be closing
		if more := countFDs(t) - fds; more <= 2 && runtime.NumGoroutine() <= goroutines+10 {
			break
		} else if attempt == 200 {
			t.Fatalf("%d more descriptors, goroutines %d, before %d", more, runtime.NumGoroutine(), goroutines)
		}
		runtime.GC()
		time.Sleep(10 * time.Millisecond)
	}
}

func countFDs(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestSpecificationsAreBounded: what waits for its start cannot fill the memory.
func TestSpecificationsAreBounded(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) { c.Limits.SpoolTotal = 1 << 20 })
	spec := &agentv1.ProcessSpec{Argv: []string{"true"}}
	for range 15 {
		spec.Argv = append(spec.Argv, strings.Repeat("x", 100_000))
	}
	var err error
	accepted := 0
	for ; err == nil && accepted < 100; accepted++ {
		_, err = f.agent.CreateProcess(t.Context(), connect.NewRequest(&agentv1.CreateProcessRequest{
			ProcessId: string(sandbox.NewProcessID()), Spec: spec}))
	}
	wantCode(t, err, sandbox.CodeCapacity)
	if accepted < 2 {
		t.Errorf("only %d accepted", accepted)
	}
}

// TestGroupsParsing checks the reading of group lines, with broken ones among them.
func TestGroupsParsing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	group := "a:x:10:u\nb:x:11:v,u\nbroken\nc:x:no:u\nd:x:-1:u\ne:x:12:uu\nf:x:20:u\nself:x:20:\n"
	if err := os.WriteFile(filepath.Join(dir, "group"), []byte(group), 0o644); err != nil {
		t.Fatal(err)
	}
	lines, err := (userDatabase{dir: dir}).read("group")
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprint(memberships(lines, account{name: "u", uid: 5, gid: 20}))
	if got != "[20 10 11]" {
		t.Errorf("groups %s", got)
	}
}
