package control_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
)

// history is a world on which a random history runs, and what was asked of it.
type history struct {
	*world
	boxes []sandbox.ID
	ops   []sandbox.OperationID
}

// step does one random thing. It does not wait for what it starts, so things overlap.
func (h *history) step(rt *rapid.T) {
	pick := func() (sandbox.ID, bool) {
		if len(h.boxes) == 0 {
			return "", false
		}
		return rapid.SampledFrom(h.boxes).Draw(rt, "box"), true
	}
	switch rapid.SampledFrom([]string{"create", "create", "create", "fail", "delete", "delete", "exit", "command", "verb", "verb", "verb", "verb", "full", "control", "gateway", "node"}).Draw(rt, "step") {
	case "create":
		h.node.setHook(nil)
		h.create(rt)
	case "fail":
		h.node.setHook(failing("EnsureMachine", sandbox.Errorf(sandbox.CodePoolFull, "full")))
		h.create(rt)
	case "delete":
		if id, ok := pick(); ok {
			if acc, err := h.c.DeleteSandbox(h.t.Context(), h.call(), string(id)); err == nil {
				h.ops = append(h.ops, acc.Operation.ID)
			} else if sandbox.CodeOf(err) != sandbox.CodeNotFound {
				rt.Fatalf("delete: %v", err)
			}
		}
	case "verb":
		if id, ok := pick(); ok {
			verb := rapid.SampledFrom([]sandbox.Verb{sandbox.VerbPause, sandbox.VerbResume, sandbox.VerbRecover}).Draw(rt, "verb")
			acc, err := h.ask(verb, h.call(), id)
			switch sandbox.CodeOf(err) {
			case "":
				h.ops = append(h.ops, acc.Operation.ID)
			case sandbox.CodeNotFound, sandbox.CodeInvalidState, sandbox.CodeUnavailable:
			default:
				rt.Fatalf("%s: %v", verb, err)
			}
		}
	case "full":
		h.node.setFull(rapid.Bool().Draw(rt, "full"))
	case "exit":
		if ids := h.node.ids(); len(ids) > 0 {
			h.node.exit(rapid.SampledFrom(ids).Draw(rt, "machine"), sandbox.ReasonOOM, "")
		}
	case "command":
		if id, ok := pick(); ok {
			_, err := h.c.CreateCommand(h.t.Context(), h.call(), string(id), sandbox.CommandSpec{Argv: []string{"sleep"}}, true)
			if sandbox.CodeOf(err) == sandbox.CodeInternal {
				rt.Fatalf("command: %v", err)
			}
		}
	case "control":
		h.crash()
		h.startControl()
	case "gateway":
		h.stopGateway()
		h.startGateway()
	case "node":
		h.stopNode()
		h.startNode()
	}
}

func (h *history) create(rt *rapid.T) {
	acc, err := h.c.CreateSandbox(h.t.Context(), h.call(), sandbox.Spec{Template: "mini", Driver: "fake"})
	if sandbox.CodeOf(err) == sandbox.CodeUnavailable {
		return
	}
	if err != nil {
		rt.Fatalf("create: %v", err)
	}
	h.boxes, h.ops = append(h.boxes, acc.Sandbox.ID), append(h.ops, acc.Operation.ID)
}

// check waits until everything is at rest, then compares record, node and gateway.
func (h *history) check() {
	h.node.setHook(nil)
	h.node.setFull(false)
	h.eventually("control is ready", func() bool { return h.c.Ready(h.t.Context()) == nil })
	for _, id := range h.ops {
		h.ended(id)
	}
	var err error
	if !within(patience, func() bool { err = h.disagreement(); return err == nil }) {
		h.t.Fatalf("record, node and gateway do not agree: %v", err)
	}
}

func (h *history) disagreement() error {
	live, err := h.store.LiveSandboxes(h.t.Context())
	if err != nil {
		return err
	}
	running, machines := map[string]bool{}, map[string]bool{}
	for _, box := range live {
		state, why := h.node.state(string(box.ID))
		switch {
		case box.OperationID != "" || box.Reason == sandbox.ReasonPoolFull:
			return fmt.Errorf("sandbox %s is %s (%s) with operation %q at rest", box.ID, box.State, box.Reason, box.OperationID)
		case box.State == sandbox.StateRunning:
			running[string(box.ID)] = true
			if state != runs || h.gw.held(string(box.ID)) != "" || box.DesiredState != box.State {
				return fmt.Errorf("sandbox %s runs, to be %s; its machine is %s %s, its route %q", box.ID, box.DesiredState, state, why, h.gw.held(string(box.ID)))
			}
		case box.State == sandbox.StatePaused:
			running[string(box.ID)] = true
			if state != stands || h.gw.held(string(box.ID)) != "paused" || box.DesiredState != box.State {
				return fmt.Errorf("sandbox %s is paused, to be %s; its machine is %s %s, its route %q", box.ID, box.DesiredState, state, why, h.gw.held(string(box.ID)))
			}
		case box.State != sandbox.StateFailed:
			return fmt.Errorf("sandbox %s is %s and nothing is under way", box.ID, box.State)
		case box.Reason == sandbox.ReasonCreateFailed, box.Reason == sandbox.ReasonInterrupted:
			continue
		default:
			open, err := h.store.OpenCommands(h.t.Context(), box.ID)
			if err != nil || len(open) > 0 {
				return fmt.Errorf("failed sandbox %s has open commands: %v %w", box.ID, open, err)
			}
		}
		machines[string(box.ID)] = true
	}
	if got := h.node.ids(); !slices.Equal(got, slices.Sorted(maps.Keys(machines))) {
		return fmt.Errorf("node has %v, the record %v", got, machines)
	}
	if got := h.gw.routed(); !slices.Equal(got, slices.Sorted(maps.Keys(running))) {
		return fmt.Errorf("the gateway has %v, the record %v", got, running)
	}
	return h.operations()
}

// operations checks that every operation that was accepted is there and has ended.
func (h *history) operations() error {
	open, err := h.store.UnfinishedOperations(h.t.Context())
	if err != nil || len(open) > 0 {
		return fmt.Errorf("unfinished operations: %v %w", open, err)
	}
	for _, id := range h.ops {
		op, err := h.store.Operation(h.t.Context(), id)
		if errors.Is(err, store.ErrNotFound) || !op.State.Ended() {
			return fmt.Errorf("operation %s: %s %w", id, op.State, err)
		}
		if op.State == operation.Failed && op.Error == nil {
			return fmt.Errorf("operation %s failed and does not say why", id)
		}
	}
	return nil
}

// TestHistories runs random histories with crashes of every part in them. Whatever happened: at rest, record, node and
// gateway agree, every accepted operation has ended, and nothing is left of what was deleted.
func TestHistories(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		h := &history{world: newWorld(t)}
		for range rapid.IntRange(1, 15).Draw(rt, "length") {
			h.step(rt)
		}
		h.check()
		for _, id := range h.boxes {
			if _, err := h.c.GetSandbox(t.Context(), string(id)); err == nil {
				h.deleted(id)
			}
		}
		h.nothingLeft()
		h.stopControl()
		h.stopNode()
		h.stopGateway()
	})
}
