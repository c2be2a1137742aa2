package control_test

import (
	"errors"
	"testing"

	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
)

func TestOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ran := 0
	once := func(body string, fails error) (bool, error) {
		return w.c.Once(t.Context(), w.keyed("k", "POST /x", body), "x", func() error { ran++; return fails })
	}
	failed := sandbox.Errorf(sandbox.CodeUnavailable, "not now")
	if again, err := once("a", failed); again || !errors.Is(err, failed) {
		t.Errorf("one that fails: %t %v", again, err)
	}
	for i, want := range []bool{false, true, true} {
		if again, err := once("a", nil); again != want || err != nil {
			t.Errorf("call %d: %t %v", i, again, err)
		}
	}
	_, err := once("b", nil)
	wantCode(t, err, sandbox.CodeIdempotencyConflict)
	if ran != 2 {
		t.Errorf("it ran %d times, want 2", ran)
	}
	for range 2 {
		if again, err := w.c.Once(t.Context(), w.call(), "x", func() error { ran++; return nil }); again || err != nil {
			t.Errorf("without a key: %t %v", again, err)
		}
	}
	if ran != 4 {
		t.Errorf("it ran %d times, want 4", ran)
	}
}

// TestListOperationsAsTheyStand: the record does not know which of the unfinished ones run.
func TestListOperationsAsTheyStand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.running(sandbox.Spec{})
	g := newGate()
	w.node.setHook(g.at("EnsureMachine"))
	under := w.accept(sandbox.Spec{})
	<-g.reached
	for state, want := range map[operation.State]int{operation.Running: 1, operation.Queued: 0, operation.Succeeded: 1} {
		page, err := w.c.ListOperations(t.Context(), control.OperationFilter{PageRequest: control.PageRequest{Count: true},
			States: []operation.State{state}})
		if err != nil || len(page.Items) != want || *page.Total != want {
			t.Errorf("%s: %+v, total %d, %v; want %d", state, page.Items, *page.Total, err, want)
		}
	}
	close(g.open)
	w.ended(under.Operation.ID)
}
