package control

import (
	"context"

	nodev1 "github.com/space-sandbox/space/api/proto/node/v1"
	"github.com/space-sandbox/space/internal/failpoint"
	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
)

// DeleteSandbox accepts a delete in every state. What is under way or queued is ended by it; while one delete runs,
// another answers the same operation.
func (c *Control) DeleteSandbox(ctx context.Context, call Call, ref string) (Accepted, error) {
	var before []operation.Operation
	return c.accept(ctx, request{call: call, kind: string(sandbox.VerbDelete), find: c.finder(ref),
		decide: func(ctx context.Context, tx store.Tx, op *operation.Operation, id sandbox.ID) (sandbox.Sandbox, error) {
			box, err := find(ctx, tx, string(id))
			if err != nil {
				return box, err
			}
			if sandbox.VerbDelete.On(box).Rule == sandbox.Joins {
				return box, joined{box.OperationID}
			}
			if err := checkCall(call, box); err != nil {
				return box, err
			}
			if before, err = tx.OpenOperations(ctx, resourceOf(id)); err != nil {
				return box, err
			}
			box.State, box.DesiredState, box.OperationID = sandbox.StateDeleting, sandbox.StateDeleted, op.ID
			return tx.UpdateSandbox(box)
		},
		accepted: func() {
			for _, op := range before {
				c.engine.Interrupt(op.ID, superseded())
			}
		}})
}

// finder finds a sandbox by id or name.
func (c *Control) finder(ref string) func(context.Context) (sandbox.ID, error) {
	return func(ctx context.Context) (sandbox.ID, error) {
		box, err := find(ctx, c.Store, ref)
		return box.ID, err
	}
}

// deleteTask removes everything of a sandbox. It ends in no other way than done: while node does not answer, or cannot
// remove something, it keeps trying.
func (c *Control) deleteTask(op sandbox.OperationID, id sandbox.ID) operation.Task {
	return operation.Task{ID: op, Body: func(_ context.Context, r *operation.Run) operation.Outcome {
		ctx := r.Outer() // nothing but the end of control stops a delete
		err := r.Step(ctx, "unpublish", func(ctx context.Context) error {
			c.unpublish(ctx, id, string(sandbox.StateDeleted))
			failpoint.Hit(failpoint.RouteRemoved)
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
			c.budget.deleted(id)
			c.wake(gone)
		}
		return err
	}
}

// removeMachine makes node remove everything of a sandbox. It fails only when ctx ends.
func (c *Control) removeMachine(ctx context.Context, id sandbox.ID) error {
	err := c.insist(ctx, c.node, "DeleteMachine", anyError, func(ctx context.Context) error {
		_, err := call(ctx, c.Limits.DeleteTimeout, c.Deps.Node.DeleteMachine, &nodev1.DeleteMachineRequest{SandboxId: string(id)})
		return err
	})
	if err != nil {
		return err
	}
	failpoint.Hit(failpoint.MachineRemoved)
	return nil
}

// wake tells those who wait for commands that something has changed.
func (c *Control) wake(commands []sandbox.Command) {
	for _, cmd := range commands {
		c.waiting.notify(string(cmd.ID))
	}
}
