package control_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
)

// restarted ends control and starts it again with other limits.
func (w *world) restarted(limits control.Limits) {
	w.t.Helper()
	w.crash()
	w.limits = limits
	w.startControl()
	w.eventually("control is ready", func() bool { return w.c.Ready(w.t.Context()) == nil })
}

// by is a call with another key.
func by(key string) control.Call {
	return control.Call{Principal: auth.Principal{KeyID: key, Role: auth.RoleAdmin}}
}

// order notes in which order machines are asked for; all of them wait until it is let go.
type order struct {
	mu   sync.Mutex
	ids  []string
	gate *gate
}

func newOrder() *order { return &order{gate: newGate()} }

func (o *order) hook(ctx context.Context, call, id string) error {
	if call != "EnsureMachine" {
		return nil
	}
	o.mu.Lock()
	o.ids = append(o.ids, id)
	o.mu.Unlock()
	return o.gate.at(call)(ctx, call, id)
}

func (o *order) seen() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.ids)
}

// TestRefusedCreateLeavesNothing: over the pool, the number of sandboxes or the queue a create is refused before
// anything exists, says when to come back, and its Idempotency-Key works later.
func TestRefusedCreateLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		limits     control.Limits
		shut, open func(w *world)
	}{
		"pool": {shut: func(w *world) { w.node.free.Store(1<<30 + 63<<20) }, open: func(w *world) { w.node.free.Store(1<<30 + 65<<20) }},
		"number": {limits: control.Limits{Sandboxes: 1},
			shut: func(w *world) { w.running(sandbox.Spec{Name: "first"}) }, open: func(w *world) { w.deleted(w.named("first")) }},
		"machines of node": {shut: func(w *world) { w.node.places.Store(1); w.running(sandbox.Spec{Name: "first"}) },
			open: func(w *world) { w.deleted(w.named("first")) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			test.shut(w)
			w.restarted(test.limits)
			before, err := w.store.LiveSandboxes(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			call := w.keyed("k", "POST /v1/sandboxes", "a")
			_, err = w.c.CreateSandbox(t.Context(), call, sandbox.Spec{Template: "mini"})
			if e := sandbox.AsError(err); e.Code != sandbox.CodeCapacity || e.RetryAfter == 0 || e.Cause == "" || e.Remedy == "" {
				t.Fatalf("%+v", e)
			}
			after, err := w.store.LiveSandboxes(t.Context())
			open, oerr := w.store.UnfinishedOperations(t.Context())
			if err != nil || oerr != nil || len(after) != len(before) || len(open) != 0 {
				t.Errorf("%d sandboxes, %d before; %d operations (%v, %v)", len(after), len(before), len(open), err, oerr)
			}
			test.open(w)
			var acc control.Accepted
			w.eventually("it is accepted", func() bool {
				acc, err = w.c.CreateSandbox(t.Context(), call, sandbox.Spec{Template: "mini"})
				return err == nil
			})
			if op := w.ended(acc.Operation.ID); acc.Replayed || op.State != operation.Succeeded {
				t.Errorf("replayed %v, %s %v", acc.Replayed, op.State, op.Error)
			}
		})
	}
}

// TestRefusedLaterGivesBack: a create that finds room, and is refused for another reason, holds none of it.
func TestRefusedLaterGivesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.restarted(control.Limits{Sandboxes: 3})
	w.running(sandbox.Spec{Name: "x"})
	for range 5 {
		_, err := w.c.CreateSandbox(t.Context(), w.call(), sandbox.Spec{Template: "mini", Name: "x"})
		wantCode(t, err, sandbox.CodeNameTaken)
	}
	w.running(sandbox.Spec{Name: "y"})
	w.running(sandbox.Spec{Name: "z"})
}

func (w *world) named(name string) sandbox.ID {
	w.t.Helper()
	box, err := w.c.GetSandbox(w.t.Context(), name)
	if err != nil {
		w.t.Fatal(err)
	}
	return box.ID
}

// TestPoolIsReservedAtOnce: creates of one moment get what there is once; those that have ended make room only once
// node has seen what they wrote.
func TestPoolIsReservedAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.node.free.Store(1<<30 + 5*64<<20)
	w.restarted(control.Limits{})
	g := newGate()
	w.node.setHook(g.at("EnsureMachine"))
	var work sync.WaitGroup
	var mu sync.Mutex
	var accepted []sandbox.OperationID
	for range 20 {
		work.Go(func() {
			acc, err := w.c.CreateSandbox(t.Context(), w.call(), sandbox.Spec{Template: "mini", Driver: "fake"})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				accepted = append(accepted, acc.Operation.ID)
			} else if sandbox.CodeOf(err) != sandbox.CodeCapacity {
				t.Error(err)
			}
		})
	}
	work.Wait()
	if len(accepted) != 5 {
		t.Errorf("%d accepted, want 5", len(accepted))
	}
	w.restarted(control.Limits{}) // what was under way goes on, and has what it had
	_, err := w.c.CreateSandbox(t.Context(), w.call(), sandbox.Spec{Template: "mini", Driver: "fake"})
	wantCode(t, err, sandbox.CodeCapacity)
	close(g.open)
	for _, op := range accepted {
		w.ended(op)
	}
	w.eventually("there is room again", func() bool {
		_, err := w.c.CreateSandbox(t.Context(), w.call(), sandbox.Spec{Template: "mini", Driver: "fake"})
		return err == nil
	})
}

// TestRecoveriesAreReserved: a recovery that waits for its turn has its memory, also after a restart.
func TestRecoveriesAreReserved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.restarted(control.Limits{ConcurrentCreates: 1})
	var boxes []sandbox.ID
	for range 2 {
		box := w.running(sandbox.Spec{MemoryMiB: 3000})
		w.node.exit(string(box.ID), sandbox.ReasonOOM, "")
		w.eventually("it has failed", func() bool { return w.box(box.ID).State == sandbox.StateFailed })
		boxes = append(boxes, box.ID)
	}
	o := newOrder()
	w.node.setHook(o.hook)
	w.accept(sandbox.Spec{MemoryMiB: 3000}) // has the only slot
	<-o.gate.reached
	acc, err := w.ask(sandbox.VerbRecover, w.call(), boxes[0])
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.ask(sandbox.VerbRecover, w.call(), boxes[1])
	wantCode(t, err, sandbox.CodeCapacity)
	if op, err := w.c.GetOperation(t.Context(), acc.Operation.ID, 0); err != nil || op.State != operation.Queued {
		t.Errorf("a recovery that waits for its turn is %s (%v)", op.State, err)
	}
	// The create goes on in its slot, and the recovery keeps what it has.
	w.restarted(control.Limits{ConcurrentCreates: 1})
	_, err = w.c.CreateSandbox(t.Context(), w.call(), sandbox.Spec{Template: "mini", MemoryMiB: 3000})
	wantCode(t, err, sandbox.CodeCapacity)
	close(o.gate.open)
	if op := w.ended(acc.Operation.ID); op.State != operation.Succeeded {
		t.Errorf("%s %v", op.State, op.Error)
	}
}

// TestKeysTakeTurns: many queued creates of one key do not hold up another key's.
func TestKeysTakeTurns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.restarted(control.Limits{ConcurrentCreates: 1, QueuedPerKey: 20})
	o := newOrder()
	w.node.setHook(o.hook)
	create := func(key string) control.Accepted {
		t.Helper()
		acc, err := w.c.CreateSandbox(t.Context(), by(key), sandbox.Spec{Template: "mini", Driver: "fake"})
		if err != nil {
			t.Fatal(err)
		}
		return acc
	}
	var greedy []control.Accepted
	for range 21 {
		greedy = append(greedy, create("key_greedy"))
	}
	<-o.gate.reached
	_, err := w.c.CreateSandbox(t.Context(), by("key_greedy"), sandbox.Spec{Template: "mini", Driver: "fake"})
	wantCode(t, err, sandbox.CodeCapacity)
	modest := create("key_modest")
	if op, err := w.c.GetOperation(t.Context(), modest.Operation.ID, 0); err != nil || op.State != operation.Queued || len(op.Steps) != 0 {
		t.Errorf("one that waits for its turn: %+v (%v)", op, err)
	}
	close(o.gate.open)
	w.ended(modest.Operation.ID)
	for _, acc := range greedy {
		if op := w.ended(acc.Operation.ID); op.State != operation.Succeeded {
			t.Errorf("%s %v", op.State, op.Error)
		}
	}
	if at := slices.Index(o.seen(), string(modest.Sandbox.ID)); at < 1 || at > 2 {
		t.Errorf("it was number %d, want one of the next two", at)
	}
}

// TestQueueSurvivesRestarts: what was accepted and not begun comes back in its order.
func TestQueueSurvivesRestarts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.restarted(control.Limits{ConcurrentCreates: 1})
	o := newOrder()
	w.node.setHook(o.hook)
	first := w.accept(sandbox.Spec{Driver: "fake"})
	<-o.gate.reached
	want := []string{string(first.Sandbox.ID)} // it goes on
	var last control.Accepted
	for range 12 {
		last = w.accept(sandbox.Spec{Driver: "fake"})
		want = append(want, string(last.Sandbox.ID))
	}
	o = newOrder()
	close(o.gate.open)
	w.crash()
	w.node.setHook(o.hook)
	w.restarted(control.Limits{ConcurrentCreates: 1})
	if op := w.ended(last.Operation.ID); op.State != operation.Succeeded {
		t.Errorf("%s %v", op.State, op.Error)
	}
	if diff := cmp.Diff(want, o.seen()); diff != "" {
		t.Error(diff)
	}
}

// TestWaitingIsNoFault: the time before an operation's turn does not count to its deadline.
func TestWaitingIsNoFault(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.restarted(control.Limits{ConcurrentCreates: 1, CreateDeadline: time.Second})
	var mu sync.Mutex
	n := 0
	w.node.setHook(func(ctx context.Context, call, _ string) error {
		if call != "EnsureMachine" {
			return nil
		}
		mu.Lock()
		n++
		hangs := n <= 2
		mu.Unlock()
		if hangs {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	})
	var ops []sandbox.OperationID
	for range 3 {
		ops = append(ops, w.accept(sandbox.Spec{Driver: "fake"}).Operation.ID)
	}
	for i, want := range []operation.State{operation.Failed, operation.Failed, operation.Succeeded} {
		op := w.ended(ops[i])
		if op.State != want || want == operation.Failed && op.Error.Code != sandbox.CodeDeadline {
			t.Errorf("create %d: %s %v", i, op.State, op.Error)
		}
	}
}

// TestDrain: creates and recoveries are refused, over restarts; everything else works, and what is under way goes on.
func TestDrain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	failed, box := w.running(sandbox.Spec{}), w.running(sandbox.Spec{})
	w.node.exit(string(failed.ID), sandbox.ReasonOOM, "")
	w.eventually("it has failed", func() bool { return w.box(failed.ID).State == sandbox.StateFailed })
	g := newGate()
	w.node.setHook(g.at("EnsureMachine"))
	underWay := w.accept(sandbox.Spec{})
	<-g.reached
	d, err := w.c.Drain(t.Context(), true)
	if want := (control.DrainState{Draining: true, UnderWay: 1, Sandboxes: 3}); err != nil || d != want {
		t.Fatalf("%+v %v, want %+v", d, err, want)
	}
	refused := func() {
		t.Helper()
		call := w.keyed("k", "POST /v1/sandboxes", "a")
		_, err := w.c.CreateSandbox(t.Context(), call, sandbox.Spec{Template: "mini"})
		wantCode(t, err, sandbox.CodeDraining)
		if sandbox.AsError(err).RetryAfter == 0 {
			t.Error("it does not say when to come back")
		}
		_, err = w.ask(sandbox.VerbRecover, w.call(), failed.ID)
		wantCode(t, err, sandbox.CodeDraining)
	}
	refused()
	_, err = w.ask(sandbox.VerbRecover, w.call(), underWay.Sandbox.ID) // would wait behind its create
	wantCode(t, err, sandbox.CodeDraining)
	close(g.open)
	if op := w.ended(underWay.Operation.ID); op.State != operation.Succeeded {
		t.Errorf("what was under way: %s %v", op.State, op.Error)
	}
	w.restarted(control.Limits{})
	refused()
	if n, err := w.c.Node(t.Context()); err != nil || !n.Draining || n.UnderWay != 0 {
		t.Errorf("%+v %v", n, err)
	}
	w.done(sandbox.VerbPause, box.ID)
	w.done(sandbox.VerbResume, box.ID)
	w.deleted(box.ID)
	if d, err := w.c.Drain(t.Context(), false); err != nil || d.Draining {
		t.Errorf("%+v %v", d, err)
	}
	w.restarted(control.Limits{})
	w.done(sandbox.VerbRecover, failed.ID)
	w.running(sandbox.Spec{})
}

// TestDrainMeetsCreates: a create that races a drain is either refused or under way when the drain has been answered.
func TestDrainMeetsCreates(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var work sync.WaitGroup
	for i := range 10 {
		work.Go(func() {
			for n := 0; ; n++ {
				_, err := w.c.CreateSandbox(t.Context(), w.call(), sandbox.Spec{Template: "mini", Driver: "fake", Name: fmt.Sprintf("c%d-%d", i, n)})
				if sandbox.CodeOf(err) == sandbox.CodeDraining {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	w.eventually("some are there", func() bool { n, err := w.c.Node(t.Context()); return err == nil && n.Sandboxes > 10 })
	d, err := w.c.Drain(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	work.Wait()
	if n, err := w.c.Node(t.Context()); err != nil || n.Sandboxes != d.Sandboxes {
		t.Errorf("%d sandboxes after the drain was answered with %d (%v)", n.Sandboxes, d.Sandboxes, err)
	}
}
