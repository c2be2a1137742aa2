package operation

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

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
	// Body does the work in steps. Its context ends with the deadline, with an Interrupt (context.Cause says which)
	// or with Run's context.
	Body func(ctx context.Context, r *Run) Outcome
}

// Run is an operation whose body is under way.
type Run struct {
	engine *Engine
	entry  *entry
	outer  context.Context
}

// Outer is the context that Run was called with: it outlives deadline and interruption, and is for cleaning up.
func (r *Run) Outer() context.Context { return r.outer }

// Operation returns the operation as it stands.
func (r *Run) Operation() Operation { return r.entry.snapshot() }

// Retries of the commit that ends an operation.
const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// Run executes an operation that Submit or Recover has made known and returns how it ended. It returns ErrStopping,
// leaving the record unfinished, when ctx ends before the work is done. The end is always recorded: when that fails, it
// is tried again until ctx ends. Run is called once for each operation.
func (e *Engine) Run(ctx context.Context, task Task) (Operation, error) {
	en := e.find(task.ID)
	if en == nil {
		return e.cfg.Store.Operation(ctx, task.ID)
	}
	body, release, ok := e.claim(ctx, en, task.Deadline)
	if !ok {
		return Operation{}, fmt.Errorf("operation %s is under way already", task.ID)
	}
	out := task.Body(body, &Run{engine: e, entry: en, outer: ctx})
	release()
	if ctx.Err() != nil && out.Err != nil {
		return Operation{}, ErrStopping
	}
	return e.finish(ctx, en, out)
}

// claim takes the entry for Run and returns the body's context.
func (e *Engine) claim(ctx context.Context, en *entry, deadline time.Duration) (context.Context, func(), bool) {
	en.mu.Lock()
	defer en.mu.Unlock()
	if en.claimed {
		return nil, nil, false
	}
	en.claimed = true
	body, interrupt := context.WithCancelCause(ctx)
	release := func() { interrupt(nil) }
	if deadline > 0 {
		limited, cancel := context.WithTimeoutCause(body, deadline, &sandbox.Error{Code: sandbox.CodeDeadline,
			Message: "the operation did not end within its deadline", Cause: fmt.Sprintf("it had %s", deadline),
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
	for delay := firstRetry; ; delay = min(2*delay, lastRetry) {
		op := ended(en.snapshot(), out, e.cfg.Now().UTC())
		// Nobody may cancel the write that ends an operation.
		err := e.save(context.WithoutCancel(ctx), out.Commit, &op)
		if err == nil {
			e.end(en, op)
			return op, nil
		}
		e.cfg.Logger.Error("an operation's end could not be recorded; trying again", "operation_id", op.ID, "error", err)
		select {
		case <-time.After(delay/2 + rand.N(delay)):
		case <-ctx.Done():
			return Operation{}, ErrStopping
		}
	}
}

// ended returns op in the state that out stands for.
func ended(op Operation, out Outcome, now time.Time) Operation {
	op.EndedAt, op.NoChange = now, out.NoChange
	if op.StartedAt.IsZero() {
		op.StartedAt = now
	}
	op.State = Succeeded
	if out.Err != nil {
		op.State, op.Error = Failed, sandbox.AsError(out.Err)
		if op.Error.Code == sandbox.CodeCanceled {
			op.State = Canceled
		}
	}
	return op
}

// Step runs fn as a named step. The first step of an operation is written down before fn runs, in the commit that also
// claims the operation; later ones when they last longer than Config.ProgressDelay, and all of them with the end.
// The error is fn's; when ctx ended with a cause, it is that cause.
func (r *Run) Step(ctx context.Context, name string, fn func(ctx context.Context) error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := r.begin(ctx, name); err != nil {
		return err
	}
	err := fn(ctx)
	if err != nil && ctx.Err() != nil && !errors.Is(err, context.Cause(ctx)) {
		err = context.Cause(ctx)
	}
	r.edit(func(op *Operation) {
		s := &op.Steps[len(op.Steps)-1]
		for i := range op.Steps { // fn may have recorded parts behind its own step
			if op.Steps[i].Name == name && op.Steps[i].State == Running {
				s = &op.Steps[i]
			}
		}
		s.EndedAt, s.State = r.engine.cfg.Now().UTC(), Succeeded
		if err != nil {
			s.State, s.Error = Failed, shown(err)
		}
	})
	return err
}

// shown is what a client may see of err: not what it wraps.
func shown(err error) string {
	e := sandbox.AsError(err)
	if e.Cause != "" {
		return e.Message + " (" + e.Cause + ")"
	}
	return e.Message
}

// Record adds a step that has ended already: a part of the present one, timed by somebody else.
func (r *Run) Record(s Step) {
	r.edit(func(op *Operation) { op.Steps = append(op.Steps, s) })
}

func (r *Run) edit(fn func(op *Operation)) {
	r.entry.mu.Lock()
	defer r.entry.mu.Unlock()
	op := r.entry.op.clone() // snapshots given out share the old steps
	fn(&op)
	r.entry.op = op
}

// begin adds a running step; the first one claims the operation durably.
func (r *Run) begin(ctx context.Context, name string) error {
	now := r.engine.cfg.Now().UTC()
	first := false
	r.edit(func(op *Operation) {
		if op.State == Queued {
			first = true
			op.State, op.StartedAt = Running, now
		}
		op.Steps = append(op.Steps, Step{Name: name, State: Running, StartedAt: now})
	})
	if first {
		return r.engine.cfg.Store.SaveOperation(ctx, r.entry.snapshot())
	}
	r.saveLater()
	return nil
}

// saveLater writes the progress down when the operation is still under way after ProgressDelay. Such a save can come
// after the one that ends the operation; the store then leaves the record as it is.
func (r *Run) saveLater() {
	en, e := r.entry, r.engine
	en.mu.Lock()
	defer en.mu.Unlock()
	if en.saving {
		return
	}
	en.saving = true
	time.AfterFunc(e.cfg.ProgressDelay, func() {
		en.mu.Lock()
		en.saving = false
		ended, op := en.ended, en.op.clone()
		en.mu.Unlock()
		if ended || r.outer.Err() != nil {
			return
		}
		if err := e.cfg.Store.SaveOperation(r.outer, op); err != nil {
			e.cfg.Logger.Warn("an operation's progress could not be recorded", "operation_id", op.ID, "error", err)
		}
	})
}
