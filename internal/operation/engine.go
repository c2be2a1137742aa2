package operation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/space-sandbox/space/internal/failpoint"
	"github.com/space-sandbox/space/internal/sandbox"
)

// Store is what the engine needs of the durable record.
type Store interface {
	Operation(ctx context.Context, id sandbox.OperationID) (Operation, error)
	// UnfinishedOperations returns all that are queued or running, oldest first.
	UnfinishedOperations(ctx context.Context) ([]Operation, error)
	// SaveOperation replaces the record; one that has ended it leaves as it is, without an error.
	SaveOperation(ctx context.Context, op Operation) error
}

// Commit makes op durable, together with whatever else must become so in the same transaction. It sees the state of the
// world inside that transaction, and may change op by it: the one that accepts or claims an operation may end it at
// once, the one that ends it may change how. It may be called again after it failed.
type Commit func(ctx context.Context, op *Operation) error

// ErrStopping is returned by Run when the engine's user is stopping: the operation stays unfinished in the record and
// is handed out by Recover at the next start.
var ErrStopping = errors.New("stopping")

// ErrUnderWay is returned by Run for an operation that somebody else runs.
var ErrUnderWay = errors.New("it is under way already")

// Config is what an Engine is made of.
type Config struct {
	Store  Store
	Now    func() time.Time
	Logger *slog.Logger
	// ProgressDelay is how long a step must have lasted before it is written down by itself; shorter ones become
	// durable with the next commit. 0 is DefaultProgressDelay.
	ProgressDelay time.Duration
}

// DefaultProgressDelay keeps short steps from costing commits of their own.
const DefaultProgressDelay = 250 * time.Millisecond

// Engine runs operations: the row comes before the act, each step is timed, waiting costs nothing. It starts no
// operation by itself: whoever owns the resource calls Run, in the order it likes. All methods are safe for
// concurrent use.
type Engine struct {
	cfg Config

	mu   sync.Mutex
	live map[sandbox.OperationID]*entry
}

// New returns an engine. Call Recover once before the first Submit.
func New(cfg Config) *Engine {
	if cfg.ProgressDelay == 0 {
		cfg.ProgressDelay = DefaultProgressDelay
	}
	return &Engine{cfg: cfg, live: map[sandbox.OperationID]*entry{}}
}

// entry is an operation that has not ended. While it is live, op is newer than the record.
type entry struct {
	done chan struct{} // closed when the operation has ended and is durable

	mu        sync.Mutex
	op        Operation
	claimed   bool                    // Run has it
	safe      bool                    // the task may be canceled while it runs
	interrupt context.CancelCauseFunc // of the body under way
	pending   error                   // an Interrupt that came before Run
	saving    bool                    // a progress save is under way or planned
	ended     bool                    // no progress save may begin
}

func (e *entry) snapshot() Operation {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.op.clone()
}

func (op Operation) clone() Operation {
	op.Steps = slices.Clone(op.Steps)
	return op
}

// Submit makes a new queued operation durable with commit and returns it. After an error there is none. A commit that
// finds the request answered already returns an error of its own, which Submit passes on as it is; one that finds that
// there is nothing to do ends the operation (see Succeed), and nobody runs it then.
func (e *Engine) Submit(ctx context.Context, kind string, resource Resource, input string, commit Commit) (Operation, error) {
	fresh := Operation{ID: sandbox.NewOperationID(), Kind: kind, Resource: resource, State: Queued, Input: input, Attempt: 1,
		CreatedAt: e.cfg.Now().UTC()}
	en := e.add(fresh) // before the commit, so that nobody finds the row of an operation that seems to belong to nobody
	op := fresh
	if err := commit(ctx, &op); err != nil {
		e.remove(op.ID)
		return Operation{}, err
	}
	failpoint.Hit(failpoint.OperationAccepted)
	if op.State.Ended() {
		e.end(en, op)
	}
	return op, nil
}

// Succeed ends op, as one that had nothing to change: for commits.
func (op *Operation) Succeed(now time.Time) {
	op.State, op.NoChange, op.EndedAt = Succeeded, true, now.UTC()
	op.close()
}

// Fail ends op with err: for commits. An error of code canceled makes it canceled.
func (op *Operation) Fail(err error, now time.Time) {
	op.State, op.NoChange, op.EndedAt, op.Error = Failed, false, now.UTC(), sandbox.AsError(err)
	if op.Error.Code == sandbox.CodeCanceled {
		op.State = Canceled
	}
	op.close()
}

// close makes times and steps those of an operation that has ended.
func (op *Operation) close() {
	if op.StartedAt.IsZero() {
		op.StartedAt = op.EndedAt
	}
	op.Steps = slices.DeleteFunc(slices.Clone(op.Steps), func(s Step) bool { return s.State == Running })
}

func (e *Engine) add(op Operation) *entry {
	en := &entry{op: op.clone(), done: make(chan struct{})}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.live[op.ID] = en
	return en
}

func (e *Engine) remove(id sandbox.OperationID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.live, id)
}

func (e *Engine) find(id sandbox.OperationID) *entry {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.live[id]
}

// Recover hands every operation that an earlier process left unfinished to adopt, which sees to it that Run is called
// for it. Steps that were running when that process ended are marked as cut off.
func (e *Engine) Recover(ctx context.Context, adopt func(Operation)) error {
	ops, err := e.cfg.Store.UnfinishedOperations(ctx)
	if err != nil {
		return fmt.Errorf("recover operations: %w", err)
	}
	for n := range ops {
		op := &ops[n]
		for i := range op.Steps {
			if op.Steps[i].State == Running {
				op.Steps[i].State, op.Steps[i].EndedAt = Failed, e.cfg.Now().UTC()
				op.Steps[i].Error = "cut off by a restart"
			}
		}
		if op.State == Running {
			op.Attempt++
		}
		e.add(*op)
	}
	for _, op := range ops {
		adopt(op.clone())
	}
	return nil
}

// Get returns an operation as it stands now.
func (e *Engine) Get(ctx context.Context, id sandbox.OperationID) (Operation, error) {
	if en := e.find(id); en != nil {
		return en.snapshot(), nil
	}
	return e.cfg.Store.Operation(ctx, id)
}

// Newer returns the present state of op if it is under way here, else op.
func (e *Engine) Newer(op Operation) Operation {
	if en := e.find(op.ID); en != nil && !op.State.Ended() {
		return en.snapshot()
	}
	return op
}

// Wait returns the operation when it has ended, when limit is over or when ctx ends, whichever comes first; none of
// them is an error.
func (e *Engine) Wait(ctx context.Context, id sandbox.OperationID, limit time.Duration) (Operation, error) {
	if en := e.find(id); en != nil && limit > 0 {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		select {
		case <-en.done:
			return en.snapshot(), nil // as it became durable
		case <-timer.C:
		case <-ctx.Done():
			return en.snapshot(), nil
		}
	}
	return e.Get(ctx, id)
}

// Cancel interrupts an operation that is still queued, or whose task says that it may be canceled while it runs, and
// returns it once it has ended (or when ctx ends); it may have got done meanwhile. One that is canceled already is
// returned as it is; any other is an invalid_state error.
func (e *Engine) Cancel(ctx context.Context, id sandbox.OperationID) (Operation, error) {
	en := e.find(id)
	if en == nil {
		op, err := e.cfg.Store.Operation(ctx, id)
		if err != nil {
			return Operation{}, err
		}
		if op.State == Canceled {
			return op, nil // asked for again
		}
		return op, notCancelable(op)
	}
	op, safe := en.cancelable()
	if !safe {
		return op, notCancelable(op)
	}
	e.Interrupt(id, CancelAsked())
	select {
	case <-en.done:
	case <-ctx.Done():
	}
	return e.Get(context.WithoutCancel(ctx), id)
}

// CancelAsked is the cause with which a Cancel interrupts.
func CancelAsked() error {
	return &sandbox.Error{Code: sandbox.CodeCanceled, Message: "the operation was canceled", Cause: "a cancel was asked for"}
}

func (e *entry) cancelable() (Operation, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.op.clone(), e.op.State == Queued || e.op.State == Running && e.safe
}

func notCancelable(op Operation) error {
	remedy := "wait for its end, or delete the resource"
	if op.State.Ended() {
		remedy = "it has ended: ask for the opposite if that is wanted"
	}
	return &sandbox.Error{Code: sandbox.CodeInvalidState, Message: "the operation cannot be canceled",
		Cause: fmt.Sprintf("it is a %s and is %s", op.Kind, op.State), Remedy: remedy}
}

// Interrupt cancels the context of an operation's body with cause, now or as soon as it is run. An operation that has
// ended it leaves alone.
func (e *Engine) Interrupt(id sandbox.OperationID, cause error) {
	en := e.find(id)
	if en == nil {
		return
	}
	en.mu.Lock()
	defer en.mu.Unlock()
	if en.pending == nil {
		en.pending = cause
	}
	if en.interrupt != nil {
		en.interrupt(cause)
	}
}

// Unfinished is how many operations are queued or under way.
func (e *Engine) Unfinished() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.live)
}

// Waiting reports whether the operation is known here, has not ended and has not been run.
func (e *Engine) Waiting(id sandbox.OperationID) bool {
	en := e.find(id)
	if en == nil {
		return false
	}
	en.mu.Lock()
	defer en.mu.Unlock()
	return !en.claimed && !en.ended
}

func (e *Engine) save(ctx context.Context, commit Commit, op *Operation) error {
	if commit == nil {
		return e.cfg.Store.SaveOperation(ctx, *op)
	}
	return commit(ctx, op)
}

// end publishes the final state, which is durable already.
func (e *Engine) end(en *entry, op Operation) {
	en.mu.Lock()
	en.op = op.clone()
	en.ended, en.interrupt = true, nil
	en.mu.Unlock()
	e.remove(op.ID)
	close(en.done)
}
