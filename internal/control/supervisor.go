package control

import (
	"context"
	"errors"

	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/telemetry"
)

// runNext runs one operation of a sandbox: the first of those that were accepted and have not been run. Each accepted
// operation queues one call of it, so that all are run, and in the order in which they came into the record; only that
// is the order of acceptance, since calls that were committed one after another may come here in any order.
func (c *Control) runNext(id sandbox.ID, kind string, own sandbox.OperationID) {
	if kind == kindCreate && c.engine.Waiting(own) { // nothing can have been accepted before it
		if op, err := c.engine.Get(c.base, own); err == nil {
			c.run(c.task(op))
			return
		}
	}
	var open []operation.Operation
	err := c.insist(c.base, newLink("store"), "record of what is to be done", anyError, func(ctx context.Context) (err error) {
		open, err = c.Store.OpenOperations(ctx, resourceOf(id))
		return err
	})
	if err != nil {
		return // control is stopping
	}
	for _, op := range open {
		if c.engine.Waiting(op.ID) {
			c.run(c.task(c.engine.Newer(op)))
			return
		}
	}
}

// maxCreateAttempts is how many processes may work on one create: one that ends control each time must not do so for ever.
const maxCreateAttempts = 5

// task is what is to be done for an operation, also for one that an earlier process left unfinished: it goes on from what
// the record says, since each of its steps may be done again.
func (c *Control) task(op operation.Operation) operation.Task {
	id := sandbox.ID(op.Resource.ID)
	switch {
	case op.Resource.Type != resourceSandbox:
		return operation.Task{ID: op.ID, Body: func(context.Context, *operation.Run) operation.Outcome {
			return operation.Outcome{Err: interrupted()}
		}}
	case op.Kind == kindCreate && op.Attempt > maxCreateAttempts:
		return c.interruptedTask(op.ID, id)
	case op.Kind == kindCreate:
		return c.createTask(op.ID, id)
	case op.Kind == string(sandbox.VerbDelete):
		return c.deleteTask(op.ID, id)
	}
	return c.transitionTask(op, id)
}

// run executes an operation under the trace of the request that wanted it.
func (c *Control) run(task operation.Task) {
	trace := telemetry.NewTrace() // that of an earlier process's request is not recorded
	if v, ok := c.traces.LoadAndDelete(task.ID); ok {
		if known, ok := v.(telemetry.Trace); ok && known.ID != "" {
			trace = known
		}
	}
	ctx := telemetry.WithTrace(c.base, trace)
	op, err := c.engine.Run(ctx, task)
	if errors.Is(err, operation.ErrStopping) || errors.Is(err, operation.ErrUnderWay) {
		return // the next process takes it up; or a cancel has it
	}
	c.discharge(task.ID)
	if err != nil {
		c.Logger.ErrorContext(ctx, "operation", "operation_id", task.ID, "error", err)
		return
	}
	c.logEnd(ctx, op)
}

// logEnd counts an operation that has ended, and says so in the log.
func (c *Control) logEnd(ctx context.Context, op operation.Operation) {
	c.metrics.ended(op)
	log := c.Logger.With("operation_id", op.ID, "kind", op.Kind, "sandbox_id", op.Resource.ID, "state", op.State,
		"ms", op.EndedAt.Sub(op.CreatedAt).Milliseconds())
	if op.Error != nil && op.State == operation.Failed {
		log.WarnContext(ctx, "operation ended", "error", op.Error)
		return
	}
	log.InfoContext(ctx, "operation ended")
}

// adopt takes up an operation that an earlier process left unfinished.
func (c *Control) adopt(op operation.Operation) {
	c.Logger.Info("taking up an operation", "operation_id", op.ID, "kind", op.Kind, "resource", op.Resource.ID, "state", op.State)
	if op.Resource.Type != resourceSandbox {
		c.boxes.do(op.Resource.Type+" "+op.Resource.ID, func() { c.run(c.task(op)) })
		return
	}
	if err := c.readmit(c.base, op); err != nil { // it reserves what it needs when its turn comes
		c.Logger.Error("what an operation needs could not be reserved again", "operation_id", op.ID, "error", err)
	}
	id := sandbox.ID(op.Resource.ID)
	c.boxes.do(string(id), func() { c.runNext(id, op.Kind, "") })
}

// interruptedTask ends a create that was cut off too often: what it had made is removed.
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
	return &sandbox.Error{Code: sandbox.CodeInterrupted, Message: "the operation was cut off by restarts",
		Cause: "space control ended while it ran; what it had made was removed", Remedy: "try again"}
}
