package operation

import (
	"context"
	"fmt"
	"time"

	"github.com/space-sandbox/space/internal/failpoint"
	"github.com/space-sandbox/space/internal/sandbox"
)

// Outcome is how a body ended.
type Outcome struct {
	// Err makes the operation fail; one of code canceled makes it canceled.
	Err      error
	NoChange bool
	// Commit makes the end durable; nil is the store's SaveOperation.
	Commit Commit
}

// Task is an operation to run.
type Task struct {
	ID sandbox.OperationID
	// Deadline is how long the body may take, 0 for ever. When it is over, the body's context ends with a
	// deadline_exceeded error as its cause.
	Deadline time.Duration
	// Claim is the commit of the first step: it moves the resource, or finds that it must not be moved and ends the
	// operation (Succeed, Fail). Of an operation that a restart cut off it is called again. Nil is the store's
	// SaveOperation.
	Claim Commit
	// Cancelable says that a Cancel may interrupt the body while it runs.
	Cancelable bool
	// Body does the work in steps. Its context ends with the deadline, with an Interrupt (context.Cause says which)
	// or with Run's context. What it returns does not count when the claim has ended the operation.
	Body func(ctx context.Context, r *Run) Outcome
}

// Run is an operation whose body is under way.
type Run struct {
	engine *Engine
	entry  *entry
	outer  context.Context
	task   Task
	begun  bool // the claim is durable
	ended  bool // by the claim
}

// Outer is the context that Run was called with: it outlives deadline and interruption, and is for cleaning up.
func (r *Run) Outer() context.Context { return r.outer }

// Operation returns the operation as it stands.
func (r *Run) Operation() Operation { return r.entry.snapshot() }

// Claimed reports whether the claim is durable: before that, the operation has done nothing.
func (r *Run) Claimed() bool { return r.begun }

// Over reports whether the claim has ended the operation: the body has nothing more to do then.
func (r *Run) Over() bool { return r.ended }

// lastRetry is the longest pause between two tries to make a claim or an end durable.
const lastRetry = 5 * time.Second

// Run executes an operation that Submit or Recover has made known and returns how it ended. It returns ErrStopping,
// leaving the record unfinished, when ctx ends before the work is done. The end is always recorded: when that fails, it
// is tried again until ctx ends. Run is called once for each operation.
func (e *Engine) Run(ctx context.Context, task Task) (Operation, error) {
	en := e.find(task.ID)
	if en == nil {
		return e.cfg.Store.Operation(ctx, task.ID)
	}
	body, release, ok := e.claim(ctx, en, task)
	if !ok {
		return Operation{}, fmt.Errorf("operation %s: %w", task.ID, ErrUnderWay)
	}
	run := &Run{engine: e, entry: en, outer: ctx, task: task}
	out := task.Body(body, run)
	release()
	if run.ended {
		return en.snapshot(), nil
	}
	if ctx.Err() != nil && out.Err != nil {
		return Operation{}, ErrStopping
	}
	return e.finish(ctx, en, out)
}

// claim takes the entry for Run and returns the body's context.
func (e *Engine) claim(ctx context.Context, en *entry, task Task) (context.Context, func(), bool) {
	en.mu.Lock()
	defer en.mu.Unlock()
	if en.claimed {
		return nil, nil, false
	}
	en.claimed, en.safe = true, task.Cancelable
	body, interrupt := context.WithCancelCause(ctx)
	release := func() { interrupt(nil) }
	if task.Deadline > 0 {
		limited, cancel := context.WithTimeoutCause(body, task.Deadline, &sandbox.Error{Code: sandbox.CodeDeadline,
			Message: "the operation did not end within its deadline", Cause: fmt.Sprintf("it had %s", task.Deadline),
			Remedy: "look at its steps for where the time went"})
		body, release = limited, func() { cancel(); interrupt(nil) }
	}
	en.interrupt = interrupt
	if en.pending != nil {
		interrupt(en.pending)
	}
	return body, release, true
}

func (e *Engine) finish(ctx context.Context, en *entry, out Outcome) (Operation, error) {
	en.mu.Lock()
	en.interrupt = nil
	en.mu.Unlock()
	failpoint.Hit(failpoint.OperationEnds)
	var op Operation
	err := e.persist(ctx, func() error {
		op = ended(en.snapshot(), out, e.cfg.Now().UTC())
		// Nobody may cancel the write that ends an operation.
		return e.save(context.WithoutCancel(ctx), out.Commit, &op)
	}, "end", en.snapshot().ID)
	if err != nil {
		return Operation{}, ErrStopping
	}
	failpoint.Hit(failpoint.OperationEnded)
	e.end(en, op)
	return op, nil
}

// ended returns op in the state that out stands for.
func ended(op Operation, out Outcome, now time.Time) Operation {
	if out.Err != nil {
		op.Fail(out.Err, now)
		return op
	}
	op.Succeed(now)
	op.NoChange = out.NoChange
	return op
}
