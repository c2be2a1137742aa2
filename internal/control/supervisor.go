package control

import (
	"context"
	"errors"

	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
	"github.com/space-sandbox/space/internal/telemetry"
)

// run executes an operation in its sandbox's lane, under the trace of the request that wanted it.
func (c *Control) run(trace telemetry.Trace, task operation.Task) {
	if trace.ID == "" {
		trace = telemetry.NewTrace()
	}
	ctx := telemetry.WithTrace(c.base, trace)
	op, err := c.engine.Run(ctx, task)
	if errors.Is(err, operation.ErrStopping) {
		return // the next process takes it up
	}
	if err != nil {
		c.Logger.ErrorContext(ctx, "operation", "operation_id", task.ID, "error", err)
		return
	}
	c.metrics.ended(op)
	log := c.Logger.With("operation_id", op.ID, "kind", op.Kind, "sandbox_id", op.Resource.ID, "state", op.State,
		"ms", op.EndedAt.Sub(op.CreatedAt).Milliseconds())
	if op.Error != nil && op.State == operation.Failed {
		log.WarnContext(ctx, "operation ended", "error", op.Error)
		return
	}
	log.InfoContext(ctx, "operation ended")
}

// adopt takes up an operation that an earlier process left unfinished: a create that had not begun is run, one that was
// cut off is cleaned up and fails, a delete is completed.
func (c *Control) adopt(op operation.Operation) {
	id := sandbox.ID(op.Resource.ID)
	c.Logger.Info("taking up an operation", "operation_id", op.ID, "kind", op.Kind, "sandbox_id", id, "state", op.State)
	c.boxes.do(string(id), func() {
		trace := telemetry.NewTrace() // that of the request is not recorded
		switch {
		case op.Kind == kindDelete:
			c.run(trace, c.deleteTask(op.ID, id))
		case op.Kind == kindCreate && op.State == operation.Queued:
			c.run(trace, c.createTask(op.ID, id))
		case op.Kind == kindCreate:
			c.run(trace, c.interruptedTask(op.ID, id))
		default:
			c.run(trace, operation.Task{ID: op.ID, Body: func(context.Context, *operation.Run) operation.Outcome {
				return operation.Outcome{Err: interrupted()}
			}})
		}
	})
}

// interruptedTask ends a create that was cut off: what it had made is removed.
func (c *Control) interruptedTask(op sandbox.OperationID, id sandbox.ID) operation.Task {
	return operation.Task{ID: op, Body: func(_ context.Context, r *operation.Run) operation.Outcome {
		box, err := c.Store.Sandbox(r.Outer(), id)
		if err != nil {
			return operation.Outcome{Err: storeError(err)}
		}
		return c.createFailed(r, box, interrupted())
	}}
}

func interrupted() *sandbox.Error {
	return &sandbox.Error{Code: sandbox.CodeInterrupted, Message: "the operation was cut off by a restart",
		Cause: "space control ended while it ran; what it had made was removed", Remedy: "try again"}
}

// machineLost records that the machine of a running sandbox is gone: its commands are lost, its disk is kept.
func (c *Control) machineLost(id sandbox.ID, generation int64, reason, detail string) {
	box, err := c.Store.Sandbox(c.base, id)
	if err != nil || box.State != sandbox.StateRunning || box.Generation != generation {
		return // somebody else has dealt with it
	}
	c.Logger.Warn("a machine ended", "sandbox_id", id, "reason", reason, "detail", detail)
	c.unpublish(c.base, id, reason)
	var lost []sandbox.Command
	err = c.insist(c.base, c.node, "record of an exit", anyError, func(ctx context.Context) error {
		return c.Store.Update(ctx, func(tx store.Tx) (err error) {
			if lost, err = c.loseCommands(ctx, tx, id, lostReason(reason)); err != nil {
				return err
			}
			return changeBox(ctx, tx, id, func(box *sandbox.Sandbox) {
				if box.State == sandbox.StateRunning { // a delete may have been accepted
					box.State, box.Reason, box.Detail = sandbox.StateFailed, reason, detail
				}
			})
		})
	})
	if err == nil {
		c.metrics.exits.WithLabelValues(reason).Inc()
		c.wake(lost)
	}
}

// lostReason is what a lost command says of its machine's end.
func lostReason(reason string) string {
	if reason == sandbox.ReasonHostRestarted {
		return reason
	}
	return "vm_exit"
}

// loseCommands marks every open session of a sandbox lost.
func (c *Control) loseCommands(ctx context.Context, tx store.Tx, id sandbox.ID, reason string) ([]sandbox.Command, error) {
	open, err := tx.OpenCommands(ctx, id)
	if err != nil {
		return nil, err
	}
	for _, cmd := range open {
		cmd.State, cmd.Reason, cmd.EndedAt = sandbox.CommandLost, reason, c.Now().UTC()
		if _, err := tx.UpdateCommand(cmd); err != nil {
			return nil, err
		}
	}
	return open, nil
}

// machineBack records that node has a running machine for a sandbox whose record says that it was lost: node's truth wins.
func (c *Control) machineBack(id sandbox.ID, generation int64) {
	box, err := c.Store.Sandbox(c.base, id)
	if err != nil || box.State != sandbox.StateFailed || box.Generation != generation || !keepsMachine(box) {
		return
	}
	c.Logger.Warn("a machine that was thought lost is running", "sandbox_id", id, "reason", box.Reason)
	c.metrics.drift.WithLabelValues("record_behind").Inc()
	if err := c.publish(c.base, box); err != nil {
		return // control is stopping
	}
	err = c.Store.Update(c.base, func(tx store.Tx) error {
		return changeBox(c.base, tx, id, func(box *sandbox.Sandbox) {
			if box.State == sandbox.StateFailed {
				box.State, box.Reason, box.Detail = sandbox.StateRunning, "", ""
			}
		})
	})
	if err != nil {
		c.Logger.Error("a running machine could not be recorded", "sandbox_id", id, "error", err)
	}
}

// keepsMachine reports whether a failed sandbox may still have something on node: its disk.
func keepsMachine(box sandbox.Sandbox) bool {
	return box.Reason != sandbox.ReasonCreateFailed && box.Reason != sandbox.ReasonInterrupted
}

// machineStray removes a machine that no sandbox stands for.
func (c *Control) machineStray(id sandbox.ID) {
	box, err := c.Store.Sandbox(c.base, id)
	stray := errors.Is(err, store.ErrNotFound) || err == nil &&
		(box.State == sandbox.StateDeleted || box.State == sandbox.StateFailed && !keepsMachine(box))
	if !stray {
		return
	}
	c.Logger.Warn("removing a machine that the record does not know", "sandbox_id", id)
	c.metrics.drift.WithLabelValues("stray_machine").Inc()
	if err := c.removeMachine(c.base, id); err == nil {
		c.Logger.Info("removed a stray machine", "sandbox_id", id)
	}
}
