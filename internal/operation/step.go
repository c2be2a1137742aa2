package operation

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/space-sandbox/space/internal/failpoint"
	"github.com/space-sandbox/space/internal/sandbox"
)

// Policy says how long a step may take and which of its failures pass.
type Policy struct {
	// Deadline bounds the step with all its attempts; 0: only the operation's own. When it is over, the step's context
	// ends with Overdue as its cause.
	Deadline time.Duration
	// Overdue is the error of a step that was not done in time; nil: deadline_exceeded.
	Overdue error
	// Again reports whether the same step may succeed after err; nil: never. Between attempts there is a growing pause.
	Again func(err error) bool
	// Wake, if not nil, is asked before each attempt; when its channel is closed meanwhile, the pause is over.
	Wake func() <-chan struct{}
}

// Pauses between attempts, each spread over half to one and a half of itself, so that many that failed for one reason do
// not come back at once.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 2 * time.Second
)

func spread(d time.Duration) time.Duration { return d/2 + rand.N(d) }

// Step runs fn as a named step. The first step that is run writes the operation down before fn runs, in the commit that
// also claims it (Task.Claim); later ones are written when they last longer than Config.ProgressDelay, and all of them
// with the end. The error is fn's; when ctx ended with a cause, it is that cause.
func (r *Run) Step(ctx context.Context, name string, fn func(ctx context.Context) error) error {
	return r.Try(ctx, name, Policy{}, fn)
}

// Try is Step with a deadline and attempts of its own.
func (r *Run) Try(ctx context.Context, name string, policy Policy, fn func(ctx context.Context) error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := r.begin(ctx, name); err != nil {
		return err
	}
	err := r.attempts(ctx, name, policy, fn)
	r.editStep(name, func(s *Step) {
		s.EndedAt, s.State = r.engine.cfg.Now().UTC(), Succeeded
		if err != nil {
			s.State, s.Error = Failed, shown(err)
		}
	})
	return err
}

// attempts calls fn until it succeeds, fails for good, or its time is over.
func (r *Run) attempts(ctx context.Context, name string, policy Policy, fn func(ctx context.Context) error) error {
	if policy.Deadline > 0 {
		overdue := policy.Overdue
		if overdue == nil {
			overdue = &sandbox.Error{Code: sandbox.CodeDeadline, Message: "a step did not end within its deadline",
				Cause: fmt.Sprintf("%s had %s", name, policy.Deadline), Remedy: "try again; the log of the SPACE processes says what it waited for"}
		}
		limited, cancel := context.WithTimeoutCause(ctx, policy.Deadline, overdue)
		defer cancel()
		ctx = limited
	}
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		var wake <-chan struct{}
		if policy.Wake != nil {
			wake = policy.Wake()
		}
		err := fn(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return endedBy(ctx, err)
		}
		if policy.Again == nil || !policy.Again(err) {
			return err
		}
		r.engine.cfg.Logger.WarnContext(ctx, "a step failed; trying again", "step", name, "operation_id", r.entry.snapshot().ID, "error", err)
		r.editStep(name, func(s *Step) { s.Attempts, s.Error = s.Attempts+1, shown(err) })
		r.saveLater()
		timer := time.NewTimer(spread(pause))
		select {
		case <-timer.C:
		case <-wake:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return endedBy(ctx, err)
		}
		r.editStep(name, func(s *Step) { s.Error = "" })
	}
}

// endedBy is why a step ended whose context has: the context's cause, which keeps the last failure for the log.
func endedBy(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if errors.Is(err, cause) {
		return err
	}
	if e, ok := errors.AsType[*sandbox.Error](cause); ok && e.Err == nil && e.Code != sandbox.CodeCanceled {
		with := *e
		with.Err = err
		return &with
	}
	return cause
}

// Done reports whether a step of that name has succeeded, in this run or in one that a restart cut off.
func (r *Run) Done(name string) bool {
	for _, s := range r.Operation().Steps {
		if s.Name == name && s.State == Succeeded {
			return true
		}
	}
	return false
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

// editStep changes the running step of that name; fn may have recorded parts behind it.
func (r *Run) editStep(name string, fn func(s *Step)) {
	r.edit(func(op *Operation) {
		for i := range op.Steps {
			if op.Steps[i].Name == name && op.Steps[i].State == Running {
				fn(&op.Steps[i])
			}
		}
	})
}

// errEnded is what the first step returns when its claim has ended the operation.
var errEnded = errors.New("the operation ended when it was claimed")

// begin adds a running step; the first one claims the operation durably.
func (r *Run) begin(ctx context.Context, name string) error {
	now := r.engine.cfg.Now().UTC()
	if r.ended {
		return errEnded
	}
	if r.begun {
		r.edit(func(op *Operation) { op.Steps = append(op.Steps, Step{Name: name, State: Running, StartedAt: now}) })
		r.saveLater()
		return nil
	}
	failpoint.Hit(failpoint.OperationBegins)
	var op Operation
	err := r.engine.persist(ctx, func() error {
		op = r.entry.snapshot()
		op.State = Running
		if op.StartedAt.IsZero() {
			op.StartedAt = now
		}
		op.Steps = append(op.Steps, Step{Name: name, State: Running, StartedAt: now})
		return r.engine.save(ctx, r.task.Claim, &op)
	}, "claim", r.task.ID)
	if err != nil {
		return err
	}
	failpoint.Hit(failpoint.OperationClaimed)
	r.begun = true
	if op.State.Ended() {
		r.ended = true
		r.engine.end(r.entry, op)
		return errEnded
	}
	r.edit(func(now *Operation) { *now = op })
	return nil
}

// persist calls save until it succeeds or ctx ends, which is reported with its cause: a record that cannot be written
// now must not make an operation fail that has not done anything.
func (e *Engine) persist(ctx context.Context, save func() error, what string, id sandbox.OperationID) error {
	for pause := firstPause; ; pause = min(2*pause, lastRetry) {
		err := save()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		e.cfg.Logger.ErrorContext(ctx, "an operation could not be recorded; trying again", "operation_id", id, "what", what, "error", err)
		timer := time.NewTimer(spread(pause))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
	}
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
