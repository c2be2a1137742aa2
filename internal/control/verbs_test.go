package control_test

import (
	"strings"
	"testing"

	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
)

// at makes a sandbox and brings it into a state. When that is one on the way, the returned function lets it go on, and
// returns the state in which it ends.
func (w *world) at(state sandbox.State) (sandbox.ID, func() sandbox.State) {
	w.t.Helper()
	stay := func() sandbox.State { return state }
	on := func(call string, end sandbox.State, begin func() sandbox.ID) (sandbox.ID, func() sandbox.State) {
		g := newGate()
		w.node.setHook(g.at(call))
		id := begin()
		<-g.reached
		return id, func() sandbox.State { close(g.open); return end }
	}
	verb := func(v sandbox.Verb, id sandbox.ID) func() sandbox.ID {
		return func() sandbox.ID { w.asked(v, id); return id }
	}
	switch state {
	case sandbox.StateCreating:
		return on("EnsureMachine", sandbox.StateRunning, func() sandbox.ID { return w.accept(sandbox.Spec{}).Sandbox.ID })
	case sandbox.StatePausing:
		return on("PauseMachine", sandbox.StatePaused, verb(sandbox.VerbPause, w.running(sandbox.Spec{}).ID))
	case sandbox.StatePaused:
		return w.ready(sandbox.VerbResume).ID, stay
	case sandbox.StateResuming:
		return on("ResumeMachine", sandbox.StateRunning, verb(sandbox.VerbResume, w.ready(sandbox.VerbResume).ID))
	case sandbox.StateFailed:
		return w.ready(sandbox.VerbRecover).ID, stay
	case sandbox.StateDeleting:
		return on("DeleteMachine", sandbox.StateDeleted, verb(sandbox.VerbDelete, w.running(sandbox.Spec{}).ID))
	case sandbox.StateDeleted:
		id := w.running(sandbox.Spec{}).ID
		w.deleted(id)
		return id, stay
	}
	return w.running(sandbox.Spec{}).ID, stay
}

// TestEveryCell asks every verb in every state, and finds what the table says.
func TestEveryCell(t *testing.T) {
	t.Parallel()
	for _, state := range sandbox.States() {
		for _, way := range sandbox.Verbs() {
			t.Run(string(state)+" "+string(way.Verb), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				id, release := w.at(state)
				if state != sandbox.StateDeleted && w.box(id).State != state {
					t.Fatalf("it is %s", w.box(id).State)
				}
				w.cell(id, state, way, release)
			})
		}
	}
}

func (w *world) cell(id sandbox.ID, state sandbox.State, way sandbox.Transition, release func() sandbox.State) {
	t, cell := w.t, way.Verb.In(state)
	before, err := w.store.UnfinishedOperations(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	acc, err := w.ask(way.Verb, w.call(), id)
	now := acc.Operation
	switch cell.Rule {
	case sandbox.Refused, sandbox.Gone:
		want := map[sandbox.Rule]sandbox.Code{sandbox.Refused: sandbox.CodeInvalidState, sandbox.Gone: sandbox.CodeNotFound}
		wantCode(t, err, want[cell.Rule])
		if e := sandbox.AsError(err); !strings.Contains(e.Remedy, string(cell.Helps)) || e.Remedy == "" {
			t.Errorf("the remedy %q does not name %q", e.Remedy, cell.Helps)
		}
		after, err := w.store.UnfinishedOperations(t.Context())
		if err != nil || len(after) != len(before) {
			t.Errorf("a refused call left an operation: %v %v", after, err)
		}
		release()
		return
	case sandbox.Joins:
		if err != nil || len(before) != 1 || now.ID != before[0].ID {
			t.Errorf("answered with %s %v, want the one under way", now.ID, err)
		}
	case sandbox.Already:
		if err != nil || now.State != operation.Succeeded || !now.NoChange {
			t.Errorf("%s no_change %v %v", now.State, now.NoChange, err)
		}
	default:
		if err != nil || now.State != operation.Queued {
			t.Errorf("accepted: %s %v", now.State, err)
		}
	}
	rule, end := cell.Rule, release()
	if rule == sandbox.Waits {
		rule = way.Verb.In(end).Rule
	}
	switch op := w.ended(now.ID); rule {
	case sandbox.Refused:
		if op.State != operation.Failed || op.Error.Code != sandbox.CodeInvalidState {
			t.Errorf("%s %v, want invalid_state", op.State, op.Error)
		}
	default:
		if op.State != operation.Succeeded || op.NoChange != (rule == sandbox.Already) {
			t.Errorf("%s no_change %v %v, want %s", op.State, op.NoChange, op.Error, rule)
		}
		end = way.End
	}
	box, err := w.store.Sandbox(t.Context(), id)
	if err != nil || box.State != end || box.OperationID != "" || box.DesiredState != end && box.State != sandbox.StateFailed {
		t.Errorf("at the end: %s, to be %s, operation %q, %v; want %s", box.State, box.DesiredState, box.OperationID, err, end)
	}
}

// TestNothingToRecover: what never had a disk can only be deleted.
func TestNothingToRecover(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.node.setHook(failing("EnsureMachine", sandbox.Errorf(sandbox.CodePoolFull, "full")))
	acc := w.accept(sandbox.Spec{})
	w.ended(acc.Operation.ID)
	for _, verb := range []sandbox.Verb{sandbox.VerbPause, sandbox.VerbResume, sandbox.VerbRecover} {
		_, err := w.ask(verb, w.call(), acc.Sandbox.ID)
		wantCode(t, err, sandbox.CodeInvalidState)
		if e := sandbox.AsError(err); !strings.Contains(e.Remedy, "space rm") {
			t.Errorf("%s: remedy %q", verb, e.Remedy)
		}
	}
	w.deleted(acc.Sandbox.ID)
}

// TestRecoverNeedsRoom: what has failed holds no memory; a recovery has to find some.
func TestRecoverNeedsRoom(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	box := w.running(sandbox.Spec{MemoryMiB: 5000})
	w.node.exit(string(box.ID), sandbox.ReasonOOM, "")
	w.eventually("it has failed", func() bool { return w.box(box.ID).State == sandbox.StateFailed })
	other := w.running(sandbox.Spec{MemoryMiB: 5000})
	_, err := w.ask(sandbox.VerbRecover, w.call(), box.ID)
	wantCode(t, err, sandbox.CodeCapacity)
	w.wantBox(box.ID, sandbox.StateFailed, sandbox.StateRunning, sandbox.ReasonOOM)
	w.deleted(other.ID)
	w.done(sandbox.VerbRecover, box.ID)
}
