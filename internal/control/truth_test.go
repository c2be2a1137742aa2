package control_test

import (
	"context"
	"strings"
	"testing"

	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
)

// TestPoolFull: node holds machines while the pool is full. The record says so, nobody's wish changes, and they go on.
func TestPoolFull(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	box := w.running(sandbox.Spec{})
	asleep := w.ready(sandbox.VerbResume)
	w.node.setFull(true)
	w.eventually("the record says that it is held", func() bool { return w.box(box.ID).State == sandbox.StatePaused })
	w.wantBox(box.ID, sandbox.StatePaused, sandbox.StateRunning, sandbox.ReasonPoolFull)
	w.wantMachine(box.ID, stands, "pool_full")
	w.wantBox(asleep.ID, sandbox.StatePaused, sandbox.StatePaused, "")
	_, err := w.c.Exec(t.Context(), w.call(), string(box.ID), sandbox.CommandSpec{Argv: []string{"true"}}, nil)
	wantCode(t, err, sandbox.CodeInvalidState)
	if e := sandbox.AsError(err); !strings.Contains(e.Remedy, "pool") {
		t.Errorf("remedy %q", e.Remedy)
	}
	// A resume cannot be done now, and changes nothing.
	if op := w.ended(w.asked(sandbox.VerbResume, box.ID)); op.State != operation.Failed || op.Error.Code != sandbox.CodePoolFull {
		t.Errorf("resume: %s %v", op.State, op.Error)
	}
	w.wantBox(box.ID, sandbox.StatePaused, sandbox.StateRunning, sandbox.ReasonPoolFull)
	// What was paused may be asked to go on as soon as there is room.
	if op := w.ended(w.asked(sandbox.VerbResume, asleep.ID)); op.State != operation.Failed || op.Error.Code != sandbox.CodePoolFull {
		t.Errorf("resume of the paused one: %s %v", op.State, op.Error)
	}
	w.wantBox(asleep.ID, sandbox.StatePaused, sandbox.StateRunning, sandbox.ReasonPoolFull)
	// A pause of what is held makes it stay so.
	if op := w.done(sandbox.VerbPause, asleep.ID); op.NoChange {
		t.Error("the pause says that it has changed nothing")
	}
	w.wantBox(asleep.ID, sandbox.StatePaused, sandbox.StatePaused, "")
	w.node.setFull(false)
	w.eventually("it runs again", func() bool { return w.box(box.ID).State == sandbox.StateRunning })
	w.wantBox(box.ID, sandbox.StateRunning, sandbox.StateRunning, "")
	w.wantMachine(box.ID, runs, "")
	w.wantBox(asleep.ID, sandbox.StatePaused, sandbox.StatePaused, "")
	w.wantMachine(asleep.ID, stands, "paused")
}

// TestUnasked: what stands still or runs against the wish is made to agree with the record, and counted.
func TestUnasked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	box, asleep := w.running(sandbox.Spec{}), w.ready(sandbox.VerbResume)
	w.node.force(string(box.ID), stands, "")
	w.node.force(string(asleep.ID), runs, "")
	agree := func() bool {
		a, _ := w.node.state(string(box.ID))
		b, _ := w.node.state(string(asleep.ID))
		return a == runs && b == stands
	}
	w.eventually("node does what the record says", agree)
	w.crash() // the same when they differ at the start
	w.node.force(string(box.ID), stands, "")
	w.node.force(string(asleep.ID), runs, "")
	w.startControl()
	w.eventually("node does what the record says, again", agree)
	w.wantBox(box.ID, sandbox.StateRunning, sandbox.StateRunning, "")
	w.wantBox(asleep.ID, sandbox.StatePaused, sandbox.StatePaused, "")
	w.wantMachine(box.ID, runs, "")
	w.wantMachine(asleep.ID, stands, "paused")
	var text strings.Builder
	if err := w.c.Metrics(t.Context(), &text); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"stands_unasked", "runs_unasked"} {
		if !strings.Contains(text.String(), `kind="`+kind+`"`) {
			t.Errorf("drift of kind %s was not counted", kind)
		}
	}
}

// TestExitInEveryState: a machine that ends makes its sandbox fail with the reason, wherever it was.
func TestExitInEveryState(t *testing.T) {
	t.Parallel()
	for _, state := range []sandbox.State{sandbox.StateRunning, sandbox.StatePausing, sandbox.StatePaused, sandbox.StateResuming} {
		t.Run(string(state), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			id, release := w.at(state)
			under := w.box(id).OperationID
			w.node.exit(string(id), sandbox.ReasonHostRestarted, "last words")
			w.eventually("it has failed", func() bool { return w.box(id).State == sandbox.StateFailed })
			release()
			got := w.box(id)
			if got.Reason != sandbox.ReasonHostRestarted || got.Detail != "last words" {
				t.Errorf("%s %q", got.Reason, got.Detail)
			}
			if under != "" {
				if op := w.ended(under); op.State != operation.Failed || op.Error.Code != sandbox.CodeVMMFailed || !strings.Contains(op.Error.Cause, "host_restarted") {
					t.Errorf("the operation under way: %s %+v", op.State, op.Error)
				}
			}
			if held := w.gw.held(string(id)); held != "no route" {
				t.Errorf("route: %s", held)
			}
			w.done(sandbox.VerbRecover, id)
			w.wantBox(id, sandbox.StateRunning, sandbox.StateRunning, "")
			w.wantMachine(id, runs, "")
			if again := w.box(id); again.Generation != got.Generation+1 || again.AgentToken == got.AgentToken {
				t.Errorf("generation %d after %d; a new token: %v", again.Generation, got.Generation, again.AgentToken != got.AgentToken)
			}
		})
	}
}

// TestFailedRecoveryKeepsTheReason: what node cannot make leaves the sandbox as it was, to be tried again.
func TestFailedRecoveryKeepsTheReason(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	box := w.ready(sandbox.VerbRecover)
	w.node.setHook(failing("EnsureMachine", sandbox.Errorf(sandbox.CodeVMMFailed, "no")))
	if op := w.ended(w.asked(sandbox.VerbRecover, box.ID)); op.State != operation.Failed || op.Error.Code != sandbox.CodeVMMFailed {
		t.Errorf("%s %v", op.State, op.Error)
	}
	w.wantBox(box.ID, sandbox.StateFailed, sandbox.StateRunning, sandbox.ReasonOOM)
	w.node.setHook(nil)
	w.done(sandbox.VerbRecover, box.ID)
	w.wantBox(box.ID, sandbox.StateRunning, sandbox.StateRunning, "")
}

// TestRecoveryWhoseGuestDoesNotAnswer: its machine is ended, so that it can be recovered once more. Were it running, no verb
// but delete would help, and with it the disk would go.
func TestRecoveryWhoseGuestDoesNotAnswer(t *testing.T) {
	t.Parallel()
	for name, giveUp := range map[string]func(*world, *gate, sandbox.OperationID){
		"refuses": func(_ *world, g *gate, _ sandbox.OperationID) { close(g.open) },
		"canceled": func(w *world, _ *gate, op sandbox.OperationID) {
			if _, err := w.c.CancelOperation(w.t.Context(), op); err != nil {
				w.t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			box, g := w.ready(sandbox.VerbRecover), newGate()
			w.gw.setHook(func(ctx context.Context, call, id string) error {
				if err := g.at("AwaitReady")(ctx, call, id); err != nil || call != "AwaitReady" {
					return err
				}
				return sandbox.Errorf(sandbox.CodeGuestNotReady, "no answer")
			})
			op := w.asked(sandbox.VerbRecover, box.ID)
			<-g.reached
			giveUp(w, g, op)
			if op := w.ended(op); op.State == operation.Succeeded {
				t.Error("it succeeded")
			}
			w.wantBox(box.ID, sandbox.StateFailed, sandbox.StateRunning, sandbox.ReasonGuestNotReady)
			w.gw.setHook(nil)
			w.done(sandbox.VerbRecover, box.ID)
			w.wantBox(box.ID, sandbox.StateRunning, sandbox.StateRunning, "")
			w.wantMachine(box.ID, runs, "")
			w.deleted(box.ID)
			w.nothingLeft()
		})
	}
}

// TestRoutesAfterRestart: a gateway that starts anew is told which sandboxes stand still.
func TestRoutesAfterRestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	box, asleep := w.running(sandbox.Spec{}), w.ready(sandbox.VerbResume)
	w.crash()
	w.stopGateway()
	w.startGateway()
	w.startControl()
	w.eventually("control is ready", func() bool { return w.c.Ready(t.Context()) == nil })
	w.wantMachine(box.ID, runs, "")
	w.wantMachine(asleep.ID, stands, "paused")
	w.stopGateway()
	w.startGateway()
	w.eventually("the gateway is configured anew", func() bool { return w.gw.held(string(asleep.ID)) == "paused" })
}
