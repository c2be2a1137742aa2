package agent

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

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
	// settled waits until all handlers and sessions have returned.
	settled := func() {
		for range cap(f.server.streams) {
			f.server.streams <- struct{}{}
		}
		for range cap(f.server.streams) {
			<-f.server.streams
		}
		f.server.table.goroutines.Wait()
	}
	batch(100)
	settled()
	fds, goroutines := countFDs(t), runtime.NumGoroutine()
	batch(1000)
	settled()
	if more := countFDs(t) - fds; more > 2 {
		t.Errorf("%d more descriptors", more)
	}
	if more := runtime.NumGoroutine() - goroutines; more > 20 { // of the last calls a few may be on their way out
		t.Errorf("%d more goroutines", more)
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

// TestAckGivesUpWhatNeverStarted: it cannot start any more and makes room like what has ended.
func TestAckGivesUpWhatNeverStarted(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) { c.Limits.Processes = 1 })
	mark := filepath.Join(f.dir, "ran")
	id := f.create(&agentv1.ProcessSpec{Argv: []string{"touch", mark}})
	if _, err := f.agent.AckProcesses(t.Context(), connect.NewRequest(&agentv1.AckProcessesRequest{ProcessIds: []string{id}})); err != nil {
		t.Fatal(err)
	}
	if r := f.attach(id); r.exit.GetState() != stateFailed || r.exit.ErrorCode != string(sandbox.CodeCanceled) {
		t.Errorf("%v", r.exit)
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("it ran")
	}
	f.create(shell("true"))
}
