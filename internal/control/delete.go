package control

import (
	"context"
	"errors"
	"fmt"

	nodev1 "github.com/space-sandbox/space/api/proto/node/v1"
	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
	"github.com/space-sandbox/space/internal/telemetry"
)

// errDeleting ends the transaction of a delete that found one under way.
var errDeleting = errors.New("it is being deleted")

// DeleteSandbox accepts a delete in every state. A create under way is ended by it; while one delete runs, another
// answers the same operation.
func (c *Control) DeleteSandbox(ctx context.Context, call Call, ref string) (Accepted, error) {
	if acc, found, err := c.replayed(ctx, call); found || err != nil {
		return acc, err
	}
	box, err := find(ctx, c.Store, ref)
	if err != nil {
		return Accepted{}, err
	}
	var before sandbox.OperationID
	resource := operation.Resource{Type: resourceSandbox, ID: string(box.ID)}
	op, err := c.engine.Submit(ctx, kindDelete, resource, func(ctx context.Context, op *operation.Operation) error {
		return c.Store.Update(ctx, func(tx store.Tx) error {
			if box, err = find(ctx, tx, string(box.ID)); err != nil {
				return err
			}
			if box.State == sandbox.StateDeleting {
				return errDeleting
			}
			if err := checkCall(call, box); err != nil {
				return err
			}
			if err := c.remember(ctx, tx, call, string(op.ID)); err != nil {
				return err
			}
			before = box.OperationID
			box.State, box.DesiredState, box.OperationID = sandbox.StateDeleting, sandbox.StateDeleted, op.ID
			if box, err = tx.UpdateSandbox(box); err != nil {
				return err
			}
			return tx.InsertOperation(*op)
		})
	})
	switch {
	case errors.Is(err, errDeleting):
		return c.joinDelete(ctx, call, box)
	case errors.Is(err, errReplay):
		acc, _, err := c.replayed(ctx, call)
		return acc, err
	case err != nil:
		return Accepted{}, storeError(err)
	}
	if before != "" {
		c.engine.Interrupt(before, superseded())
	}
	c.boxes.do(string(box.ID), func() { c.run(telemetry.TraceOf(ctx), c.deleteTask(op.ID, box.ID)) })
	return Accepted{Operation: op, Sandbox: box}, nil
}

// joinDelete answers with the delete that is under way, and binds the call's Idempotency-Key to it.
func (c *Control) joinDelete(ctx context.Context, call Call, box sandbox.Sandbox) (Accepted, error) {
	if call.Idempotency != nil {
		err := c.Store.Update(ctx, func(tx store.Tx) error { return c.remember(ctx, tx, call, string(box.OperationID)) })
		if errors.Is(err, errReplay) {
			acc, _, err := c.replayed(ctx, call)
			return acc, err
		}
		if err != nil {
			return Accepted{}, storeError(err)
		}
	}
	return c.accepted(ctx, box.OperationID)
}

// checkCall applies if_state and if_busy.
func checkCall(call Call, box sandbox.Sandbox) error {
	if call.IfState != "" && call.IfState != box.State {
		return &sandbox.Error{Code: sandbox.CodeStateMismatch, Message: "the sandbox is in another state",
			Cause: fmt.Sprintf("if_state is %s, sandbox %s is %s", call.IfState, box.ID, box.State)}
	}
	if call.IfBusyFail && box.OperationID != "" {
		return &sandbox.Error{Code: sandbox.CodeSandboxBusy, Message: "an operation is under way",
			Cause: string(box.OperationID), Remedy: "wait for it, or leave if_busy out to queue behind it"}
	}
	return nil
}

// deleteTask removes everything of a sandbox. It ends in no other way than done: while node does not answer, or cannot
// remove something, it keeps trying.
func (c *Control) deleteTask(op sandbox.OperationID, id sandbox.ID) operation.Task {
	return operation.Task{ID: op, Body: func(_ context.Context, r *operation.Run) operation.Outcome {
		ctx := r.Outer() // nothing but the end of control stops a delete
		err := r.Step(ctx, "unpublish", func(ctx context.Context) error {
			c.unpublish(ctx, id, string(sandbox.StateDeleted))
			return nil
		})
		if err == nil {
			err = r.Step(ctx, "machine", func(ctx context.Context) error { return c.removeMachine(ctx, id) })
		}
		return operation.Outcome{Err: err, Commit: c.commitDeleted(id)}
	}}
}

func (c *Control) commitDeleted(id sandbox.ID) operation.Commit {
	return func(ctx context.Context, op *operation.Operation) error {
		var gone []sandbox.Command
		err := c.Store.Update(ctx, func(tx store.Tx) (err error) {
			if gone, err = tx.OpenCommands(ctx, id); err != nil {
				return err
			}
			if err := tx.DeleteCommands(id); err != nil {
				return err
			}
			err = changeBox(ctx, tx, id, func(box *sandbox.Sandbox) {
				box.State, box.DeletedAt, box.OperationID = sandbox.StateDeleted, c.Now().UTC(), ""
				box.AgentToken, box.Env = "", nil // what nobody needs any more is not kept
			})
			if err != nil {
				return err
			}
			return tx.UpdateOperation(*op)
		})
		if err == nil {
			c.wake(gone)
		}
		return err
	}
}

// removeMachine makes node remove everything of a sandbox. It fails only when ctx ends.
func (c *Control) removeMachine(ctx context.Context, id sandbox.ID) error {
	return c.insist(ctx, c.node, "DeleteMachine", anyError, func(ctx context.Context) error {
		_, err := call(ctx, c.Limits.DeleteTimeout, c.Deps.Node.DeleteMachine, &nodev1.DeleteMachineRequest{SandboxId: string(id)})
		return err
	})
}

// wake tells those who wait for commands that something has changed.
func (c *Control) wake(commands []sandbox.Command) {
	for _, cmd := range commands {
		c.waiting.notify(string(cmd.ID))
	}
}
