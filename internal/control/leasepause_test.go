package control_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
)

// inState waits until a sandbox is in a state, with its leases looked at.
func (w *world) inState(id sandbox.ID, state sandbox.State) sandbox.Sandbox {
	w.t.Helper()
	w.eventually("the sandbox is "+string(state), func() bool {
		w.c.LookAtLeases()
		return w.box(id).State == state
	})
	return w.box(id)
}

// TestLeasePauses: the lease's time stands still while the sandbox is paused, at its end the sandbox is paused by an
// operation like any other, and a resume begins a new lease.
func TestLeasePauses(t *testing.T) {
	t.Parallel()
	w := newWorldWith(t, newTwoClocks())
	box := w.running(sandbox.Spec{Lease: lease(time.Hour, sandbox.ExpirePause)})
	w.pass(20 * time.Minute)
	move := func(verb func() (control.Accepted, error)) sandbox.Sandbox {
		t.Helper()
		acc, err := verb()
		if err != nil {
			t.Fatal(err)
		}
		if op := w.ended(acc.Operation.ID); op.State != operation.Succeeded {
			t.Fatal(op.Error)
		}
		return w.box(box.ID)
	}
	pause := func() (control.Accepted, error) { return w.c.PauseSandbox(t.Context(), w.call(), string(box.ID)) }
	resume := func() (control.Accepted, error) { return w.c.ResumeSandbox(t.Context(), w.call(), string(box.ID)) }
	if l := move(pause).Lease; !l.ExpiresAt.IsZero() || l.Remaining != 40*time.Minute {
		t.Errorf("paused: %+v", l)
	}
	w.pass(10 * time.Hour)
	w.looked()
	if l := move(resume).Lease; l.Left(w.clock.now()) != 40*time.Minute {
		t.Errorf("resumed: %+v at %s", l, w.clock.now())
	}
	last := w.end()
	w.pass(40 * time.Minute)
	if l := w.inState(box.ID, sandbox.StatePaused).Lease; !l.ExpiresAt.IsZero() || l.Remaining != 0 {
		t.Errorf("at its end: %+v", l)
	}
	list := w.log(last, control.EventFilter{SandboxID: box.ID})
	for _, want := range []string{"lease expired", "operation pause queued", "sandbox pausing", "sandbox paused", "operation pause succeeded"} {
		if !slices.Contains(story(list), want) {
			t.Errorf("%q is not in %v", want, story(list))
		}
	}
	for _, e := range list {
		if e.OperationID != list[0].OperationID {
			t.Errorf("%s of operation %q", e.Type, e.OperationID)
		}
	}
	w.pass(10 * time.Hour)
	w.looked()
	w.inState(box.ID, sandbox.StatePaused)
	if l := move(resume).Lease; l.Left(w.clock.now()) != time.Hour {
		t.Errorf("a new lease: %+v at %s", l, w.clock.now())
	}
}

// TestLeasePausesAgain: a pause that fails is visible as an operation and tried again, not in a hurry.
func TestLeasePausesAgain(t *testing.T) {
	t.Parallel()
	w := newWorldWith(t, newTwoClocks())
	w.crash()
	w.limits.PauseDeadline = 20 * time.Millisecond
	w.startControl()
	w.eventually("control is ready", func() bool { return w.c.Ready(t.Context()) == nil })
	box := w.running(sandbox.Spec{Lease: lease(time.Hour, sandbox.ExpirePause)})
	w.node.setHook(failing("PauseMachine", &sandbox.Error{Code: sandbox.CodeVMMFailed, Message: "it does not stop"}))
	failed := func() int {
		page, err := w.c.ListOperations(t.Context(), control.OperationFilter{ResourceID: string(box.ID), States: []operation.State{operation.Failed}})
		if err != nil {
			t.Fatal(err)
		}
		return len(page.Items)
	}
	w.pass(time.Hour)
	w.eventually("a pause has failed", func() bool { w.c.LookAtLeases(); return failed() == 1 })
	w.inState(box.ID, sandbox.StateRunning)
	w.c.LookAtLeases()
	w.c.LookAtLeases()
	if n := failed(); n != 1 {
		t.Errorf("%d pauses failed at once", n)
	}
	w.pass(time.Second)
	w.eventually("another pause has failed", func() bool { w.c.LookAtLeases(); return failed() == 2 })
	w.node.setHook(nil)
	w.pass(time.Minute)
	w.inState(box.ID, sandbox.StatePaused)
}

// TestLeaseOfAFailedSandboxThatWasToBePaused: there is nothing to pause; the disk is kept, and the lease has ended.
func TestLeaseOfAFailedSandboxThatWasToBePaused(t *testing.T) {
	t.Parallel()
	w := newWorldWith(t, newTwoClocks())
	box := w.running(sandbox.Spec{Lease: lease(time.Hour, sandbox.ExpirePause)})
	w.node.exit(string(box.ID), sandbox.ReasonVMMExit, "")
	w.inState(box.ID, sandbox.StateFailed)
	last := w.end()
	w.pass(time.Hour)
	w.eventually("the lease has ended", func() bool {
		w.c.LookAtLeases()
		l := w.box(box.ID).Lease
		return l.ExpiresAt.IsZero() && l.Remaining == 0
	})
	if got, want := story(w.log(last, control.EventFilter{SandboxID: box.ID})), []string{"sandbox failed", "lease expired"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	w.pass(time.Hour)
	w.looked()
	if now := w.box(box.ID); now.State != sandbox.StateFailed || now.OperationID != "" {
		t.Errorf("%s, operation %q", now.State, now.OperationID)
	}
	if err := w.c.ExpireLease(t.Context(), box); !errors.Is(err, control.ErrNotDue()) {
		t.Errorf("an old look: %v", err)
	}
}
