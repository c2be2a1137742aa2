package operation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

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

// Commit makes op durable, together with whatever else must become so in the same transaction. The Commit that ends
// an operation may still change how it ends (it sees the state of the world inside its transaction). It may be called
// again after it failed.
type Commit func(ctx context.Context, op *Operation) error

// ErrStopping is returned by Run when the engine's user is stopping: the operation stays unfinished in the record and
// is handed out by Recover at the next start.
var ErrStopping = errors.New("stopping")

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
// finds the request answered already returns an error of its own, which Submit passes on as it is.
func (e *Engine) Submit(ctx context.Context, kind string, resource Resource, commit Commit) (Operation, error) {
	op := Operation{ID: sandbox.NewOperationID(), Kind: kind, Resource: resource, State: Queued, Attempt: 1,
		CreatedAt: e.cfg.Now().UTC()}
	e.add(op) // before the commit, so that nobody finds the row of an operation that seems to belong to nobody
	if err := commit(ctx, &op); err != nil {
		e.remove(op.ID)
		return Operation{}, err
	}
	return op, nil
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
		case <-timer.C:
		case <-ctx.Done():
			return en.snapshot(), nil
		}
	}
	return e.Get(ctx, id)
}

// Cancel interrupts an operation that is still queued and returns it once it has ended (or when ctx ends). One that is
// canceled already is returned as it is; one that runs or has ended otherwise is an invalid_state error.
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
	if op := en.snapshot(); op.State != Queued {
		return op, notCancelable(op)
	}
	e.Interrupt(id, &sandbox.Error{Code: sandbox.CodeCanceled, Message: "the operation was canceled",
		Cause: "a cancel was asked for before it began"})
	select {
	case <-en.done:
	case <-ctx.Done():
	}
	return e.Get(context.WithoutCancel(ctx), id)
}

func notCancelable(op Operation) error {
	return &sandbox.Error{Code: sandbox.CodeInvalidState, Message: "the operation cannot be canceled",
		Cause: fmt.Sprintf("it is %s", op.State), Remedy: "only queued operations can be canceled; delete the resource to end a running one"}
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
	en.ended = true
	en.mu.Unlock()
	e.remove(op.ID)
	close(en.done)
}
