package node

import (
	"context"
	"errors"
	"testing"
	"time"

	"connectrpc.com/connect"

	nodev1 "github.com/space-sandbox/space/api/proto/node/v1"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/vmm"
)

const (
	running = nodev1.MachineState_MACHINE_STATE_RUNNING
	paused  = nodev1.MachineState_MACHINE_STATE_PAUSED
	exited  = nodev1.MachineState_MACHINE_STATE_EXITED
)

func pauseMachine(ctx context.Context, n *Node, id sandbox.ID) (*nodev1.Machine, error) {
	res, err := service{n: n}.PauseMachine(ctx, connect.NewRequest(&nodev1.PauseMachineRequest{SandboxId: string(id), Generation: 1}))
	if err != nil {
		return nil, err
	}
	return res.Msg.Machine, nil
}

func resumeMachine(ctx context.Context, n *Node, id sandbox.ID) (*nodev1.Machine, error) {
	res, err := service{n: n}.ResumeMachine(ctx, connect.NewRequest(&nodev1.ResumeMachineRequest{SandboxId: string(id), Generation: 1}))
	if err != nil {
		return nil, err
	}
	return res.Msg.Machine, nil
}

func (w *world) must(do func(context.Context, *Node, sandbox.ID) (*nodev1.Machine, error), n *Node, id sandbox.ID) *nodev1.Machine {
	w.t.Helper()
	m, err := do(w.t.Context(), n, id)
	if err != nil {
		w.t.Fatal(err)
	}
	return m
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.start()
	id := sandbox.NewID()
	w.ensure(n, id)
	vm := w.driver.host.get(id)
	for range 2 {
		if m := w.must(pauseMachine, n, id); m.State != paused || m.Reason != "" || !vm.isPaused() {
			t.Errorf("after pause: %v", m)
		}
	}
	if m := w.ensure(n, id); m.State != paused {
		t.Errorf("ensure of a paused machine: %v", m)
	}
	await(t, n, id, func(m *nodev1.Machine) bool { return m.State == paused })
	for range 2 {
		if m := w.must(resumeMachine, n, id); m.State != running || vm.isPaused() {
			t.Errorf("after resume: %v", m)
		}
	}
	if vm.changes != 2 {
		t.Errorf("%d acts, want 2", vm.changes)
	}
	w.must(pauseMachine, n, id)
	w.remove(n, id)
	w.requireNothing()
	if _, err := pauseMachine(t.Context(), n, id); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("pause of nothing: %v", err)
	}
}

// What is wanted is on disk before the act: a node that dies between the two, or comes back to a machine that does
// something else, makes it so.
func TestRestartObeysTheRecord(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		wanted, found bool // paused
	}{
		"runs but was paused":         {true, false},
		"paused without being paused": {false, true},
		"paused":                      {true, true},
		"runs":                        {false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			id := sandbox.NewID()
			first := w.start()
			w.ensure(first, id)
			if tc.wanted {
				w.must(pauseMachine, first, id)
			}
			if err := first.Close(); err != nil {
				t.Fatal(err)
			}
			vm := w.driver.host.get(id)
			if err := vm.set(t.Context(), tc.found); err != nil {
				t.Fatal(err)
			}
			second := w.start()
			want := running
			if tc.wanted {
				want = paused
			}
			await(t, second, id, func(m *nodev1.Machine) bool { return m.State == want && m.Reason == "" })
			if vm.isPaused() != tc.wanted {
				t.Errorf("paused is %t, wanted %t", vm.isPaused(), tc.wanted)
			}
			w.remove(second, id)
			w.requireNothing()
		})
	}
}

// A machine that does not obey: the call fails, nothing that was wanted has changed, and what the VMM does late is undone.
func TestVMMThatDoesNotObey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.start()
	id := sandbox.NewID()
	w.ensure(n, id)
	vm := w.driver.host.get(id)
	refused := &sandbox.Error{Code: sandbox.CodeVMMFailed, Message: "no"}
	vm.mu.Lock()
	vm.obey = func(_ context.Context, pause bool) error {
		if pause {
			vm.mu.Lock()
			defer vm.mu.Unlock()
			vm.paused = true // it obeys late
			return refused
		}
		return nil
	}
	vm.mu.Unlock()
	if _, err := pauseMachine(t.Context(), n, id); !errors.Is(err, refused) {
		t.Errorf("got %v", err)
	}
	sub := n.hub.subscribe()
	defer sub.close()
	for vm.isPaused() { // until the background has resumed it
		select {
		case <-sub.wake:
			sub.take()
		case <-t.Context().Done():
			t.Fatal("it stays paused")
		}
	}
	if all, err := n.records.load(); err != nil || len(all) != 1 || all[0].Paused {
		t.Errorf("record %+v, %v", all, err)
	}
	w.remove(n, id)
	w.requireNothing()
}

// A delete does not wait for a VMM that never answers.
func TestDeleteInterruptsAPause(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.start()
	id := sandbox.NewID()
	w.ensure(n, id)
	failed := w.hangingPause(n, id)
	w.remove(n, id)
	if err := <-failed; err == nil {
		t.Error("the pause succeeded")
	}
	w.requireNothing()
}

// A node that starts does not wait for a VMM that never answers; until it does, node says what is wanted.
func TestStartWithAVMMThatNeverAnswers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := sandbox.NewID()
	first := w.start()
	w.ensure(first, id)
	w.must(pauseMachine, first, id)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	vm := w.driver.host.get(id)
	answers := make(chan struct{})
	vm.mu.Lock()
	vm.paused = false
	vm.obey = func(ctx context.Context, _ bool) error {
		select {
		case <-answers:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	vm.mu.Unlock()
	began := time.Now()
	second := w.start()
	if took := time.Since(began); took > agreeTime+5*time.Second {
		t.Errorf("it took %s", took)
	}
	await(t, second, id, func(m *nodev1.Machine) bool { return m.State == paused })
	close(answers)
	if w.must(pauseMachine, second, id); !vm.isPaused() {
		t.Error("it runs")
	}
	w.remove(second, id)
	w.requireNothing()
}

func TestEndOfAPausedMachine(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		away   bool
		bootID string
		reason string
	}{
		"vmm ended":        {false, "boot-1", sandbox.ReasonVMMExit},
		"vmm ended unseen": {true, "boot-1", sandbox.ReasonVMMExit},
		"host restarted":   {true, "boot-2", sandbox.ReasonHostRestarted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			n := w.start()
			id := sandbox.NewID()
			w.ensure(n, id)
			w.must(pauseMachine, n, id)
			if tc.away {
				if err := n.Close(); err != nil {
					t.Fatal(err)
				}
			}
			w.driver.host.get(id).end(vmm.Exit{Reason: sandbox.ReasonVMMExit})
			if w.bootID = tc.bootID; tc.away {
				n = w.start()
			}
			if m := await(t, n, id, func(m *nodev1.Machine) bool { return m.State == exited }); m.Reason != tc.reason {
				t.Errorf("reason %q", m.Reason)
			}
			if _, err := resumeMachine(t.Context(), n, id); sandbox.CodeOf(err) != sandbox.CodeInvalidState {
				t.Errorf("resume of an ended machine: %v", err)
			}
			w.remove(n, id)
			w.requireNothing()
		})
	}
}

// hangingPause begins a pause of a machine whose VMM never answers, and returns where its error comes.
func (w *world) hangingPause(n *Node, id sandbox.ID) <-chan error {
	vm := w.driver.host.get(id)
	asked := make(chan struct{}, 16)
	vm.mu.Lock()
	vm.obey = func(ctx context.Context, _ bool) error {
		asked <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}
	vm.mu.Unlock()
	failed := make(chan error, 1)
	go func() {
		_, err := pauseMachine(w.t.Context(), n, id)
		failed <- err
	}()
	<-asked
	return failed
}

// Node ends although a VMM does not answer.
func TestCloseWithAVMMThatNeverAnswers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.start()
	id := sandbox.NewID()
	w.ensure(n, id)
	vm := w.driver.host.get(id)
	failed := w.hangingPause(n, id)
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	if err := <-failed; err == nil {
		t.Error("the pause succeeded")
	}
	vm.mu.Lock()
	vm.obey = nil
	vm.mu.Unlock()
	next := w.start()
	await(t, next, id, isRunning)
	w.remove(next, id)
	w.requireNothing()
}
