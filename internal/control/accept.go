package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
	"github.com/space-sandbox/space/internal/telemetry"
)

// kindCreate is the kind of operations that make a sandbox; those on one that exists are named by their verbs.
const kindCreate = "create"

const resourceSandbox = "sandbox"

func resourceOf(id sandbox.ID) operation.Resource {
	return operation.Resource{Type: resourceSandbox, ID: string(id)}
}

// errReplay ends a transaction that found its request answered already.
var errReplay = errors.New("this request was answered before")

// joined ends a transaction that found what it asks for under way: the call is answered with that operation.
type joined struct{ op sandbox.OperationID }

func (joined) Error() string { return "it is under way already" }

// request is a lifecycle call on its way into the record.
type request struct {
	call Call
	kind string
	// find names the sandbox. It is not asked when the call is a replay: the sandbox may be gone.
	find func(ctx context.Context) (sandbox.ID, error)
	// decide looks at the record in the transaction that accepts the call, refuses, or writes the sandbox as it is
	// now. It may end op at once, or answer joined.
	decide func(ctx context.Context, tx store.Tx, op *operation.Operation, id sandbox.ID) (sandbox.Sandbox, error)
	// accepted, if not nil, is called once the call is in the record.
	accepted func()
}

// accept is the one way into the record for lifecycle calls: operation, sandbox and Idempotency-Key become durable in
// one commit, then the call is answered while the supervisor does what was asked.
func (c *Control) accept(ctx context.Context, req request) (Accepted, error) {
	if acc, found, err := c.replayed(ctx, req.call); found || err != nil {
		return acc, err
	}
	id, err := req.find(ctx)
	if err != nil {
		return Accepted{}, err
	}
	asked, err := wish{IfState: req.call.IfState}.text()
	if err != nil {
		return Accepted{}, err
	}
	var box sandbox.Sandbox
	op, err := c.engine.Submit(ctx, req.kind, resourceOf(id), asked, func(ctx context.Context, op *operation.Operation) error {
		c.traces.Store(op.ID, telemetry.TraceOf(ctx))
		fresh := *op
		err := c.Store.Update(ctx, func(tx store.Tx) (err error) {
			*op = fresh // the store may call this again
			if err := c.remember(ctx, tx, req.call, string(op.ID)); err != nil {
				return err
			}
			if box, err = req.decide(ctx, tx, op, id); err != nil {
				return err
			}
			return tx.InsertOperation(*op)
		})
		if err != nil || op.State.Ended() {
			c.traces.Delete(op.ID)
			c.refuse(op.ID)
		}
		return err
	})
	if other, ok := errors.AsType[joined](err); ok {
		return c.join(ctx, req.call, other.op)
	}
	if errors.Is(err, errReplay) { // a call with the same key came in at the same moment
		acc, _, err := c.replayed(ctx, req.call)
		return acc, err
	}
	if err != nil {
		return Accepted{}, storeError(err)
	}
	if req.accepted != nil {
		req.accepted()
	}
	if op.State.Ended() {
		c.logEnd(ctx, op)
		return Accepted{Operation: op, Sandbox: box}, nil
	}
	c.turns.enter(op.ID)
	c.boxes.do(string(id), func() { c.runNext(id, req.kind, op.ID) })
	return Accepted{Operation: op, Sandbox: box}, nil
}

// join answers with an operation that is under way, and binds the call's Idempotency-Key to it.
func (c *Control) join(ctx context.Context, call Call, op sandbox.OperationID) (Accepted, error) {
	if call.Idempotency != nil {
		err := c.Store.Update(ctx, func(tx store.Tx) error { return c.remember(ctx, tx, call, string(op)) })
		if errors.Is(err, errReplay) {
			acc, _, err := c.replayed(ctx, call)
			return acc, err
		}
		if err != nil {
			return Accepted{}, storeError(err)
		}
	}
	return c.accepted(ctx, op)
}

// wish is what an operation's record keeps of its call, for when its turn comes.
type wish struct {
	IfState sandbox.State `json:"if_state,omitempty"`
}

func (w wish) text() (string, error) {
	if w == (wish{}) {
		return "", nil
	}
	raw, err := json.Marshal(w)
	return string(raw), err
}

func wishOf(op operation.Operation) (w wish, err error) {
	if op.Input != "" {
		err = json.Unmarshal([]byte(op.Input), &w)
	}
	return w, err
}

// checkCall applies if_state and if_busy.
func checkCall(call Call, box sandbox.Sandbox) error {
	if err := checkState(call.IfState, box); err != nil {
		return err
	}
	return checkBusy(call, box)
}

// checkState applies if_state.
func checkState(want sandbox.State, box sandbox.Sandbox) error {
	if want == "" || want == box.State {
		return nil
	}
	return &sandbox.Error{Code: sandbox.CodeStateMismatch, Message: "the sandbox is in another state",
		Cause: fmt.Sprintf("if_state is %s, %s", want, box.Condition()), Remedy: "look at its state, and decide again", SandboxID: box.ID}
}

// checkBusy applies if_busy.
func checkBusy(call Call, box sandbox.Sandbox) error {
	if !call.IfBusyFail || box.OperationID == "" {
		return nil
	}
	return &sandbox.Error{Code: sandbox.CodeSandboxBusy, Message: "an operation is under way",
		Cause: string(box.OperationID), Remedy: "wait for it, or leave if_busy out to queue behind it",
		SandboxID: box.ID, OperationID: box.OperationID}
}

func (call Call) idempotencyID() store.IdempotencyID {
	return store.IdempotencyID{Principal: call.Principal.ID(), Scope: call.Idempotency.Scope, Key: call.Idempotency.Key}
}

// seen returns the entry of a request that was accepted before: none for a new one, an error when the key was used
// with another body.
func (c *Control) seen(ctx context.Context, r store.Reader, call Call) (store.IdempotencyEntry, bool, error) {
	if call.Idempotency == nil {
		return store.IdempotencyEntry{}, false, nil
	}
	entry, err := r.Idempotency(ctx, call.idempotencyID())
	if errors.Is(err, store.ErrNotFound) || err == nil && c.Now().Sub(entry.CreatedAt) > idempotencyAge {
		return store.IdempotencyEntry{}, false, nil
	}
	if err != nil {
		return store.IdempotencyEntry{}, false, storeError(err)
	}
	if entry.Fingerprint != call.Idempotency.Fingerprint {
		return store.IdempotencyEntry{}, false, &sandbox.Error{Code: sandbox.CodeIdempotencyConflict,
			Message: "this Idempotency-Key was used with another body", Cause: fmt.Sprintf("it led to %s", entry.ResultID),
			Remedy: "use a new key for a new request"}
	}
	return entry, true, nil
}

// remember binds the request's Idempotency-Key to its result, in the transaction that accepts it, and does what else the
// call wants to happen in it. It fails with errReplay when another call with the same key was first.
func (c *Control) remember(ctx context.Context, tx store.Tx, call Call, result string) error {
	if call.onAccept != nil {
		if err := call.onAccept(ctx, tx, result); err != nil {
			return err
		}
	}
	if call.Idempotency == nil {
		return nil
	}
	if _, found, err := c.seen(ctx, tx, call); err != nil {
		return err
	} else if found {
		return errReplay
	}
	id := call.idempotencyID()
	if err := tx.DeleteIdempotency(id); err != nil { // one that is too old to count
		return err
	}
	return tx.InsertIdempotency(store.IdempotencyEntry{IdempotencyID: id, Fingerprint: call.Idempotency.Fingerprint,
		ResultID: result, CreatedAt: c.Now().UTC()})
}

// Once runs do, unless a request with call's Idempotency-Key was answered before: that is replayed. The key is bound
// before do runs, so that do never runs twice, and is free again when do fails. It is for calls whose answer is the
// present state of a resource, which the caller looks up.
func (c *Control) Once(ctx context.Context, call Call, resource string, do func() error) (replayed bool, err error) {
	if call.Idempotency == nil {
		return false, do()
	}
	err = c.Store.Update(ctx, func(tx store.Tx) error { return c.remember(ctx, tx, call, resource) })
	if errors.Is(err, errReplay) {
		return true, nil
	}
	if err != nil {
		return false, storeError(err)
	}
	if err := do(); err != nil {
		forget := c.Store.Update(context.WithoutCancel(ctx), func(tx store.Tx) error { return tx.DeleteIdempotency(call.idempotencyID()) })
		return false, errors.Join(err, forget)
	}
	return false, nil
}

// replayed answers a lifecycle call from its Idempotency-Key.
func (c *Control) replayed(ctx context.Context, call Call) (Accepted, bool, error) {
	entry, found, err := c.seen(ctx, c.Store, call)
	if err != nil || !found {
		return Accepted{}, false, err
	}
	acc, err := c.accepted(ctx, sandbox.OperationID(entry.ResultID))
	acc.Replayed = true
	return acc, true, err
}

// accepted returns an operation with its sandbox, which may be deleted.
func (c *Control) accepted(ctx context.Context, id sandbox.OperationID) (Accepted, error) {
	op, err := c.engine.Get(ctx, id)
	if err != nil {
		return Accepted{}, storeError(err)
	}
	if op.Resource.Type != resourceSandbox {
		return Accepted{Operation: op}, nil
	}
	box, err := c.Store.Sandbox(ctx, sandbox.ID(op.Resource.ID))
	if err != nil {
		return Accepted{}, storeError(err)
	}
	return Accepted{Operation: op, Sandbox: box}, nil
}

// GetOperation returns an operation, after waiting for its end at most wait.
func (c *Control) GetOperation(ctx context.Context, id sandbox.OperationID, wait time.Duration) (operation.Operation, error) {
	op, err := c.engine.Wait(ctx, id, wait)
	return op, operationError(id, err)
}

// ListOperations returns one page; those under way are shown, and selected, as they stand: the record learns only that
// an operation was accepted and how it ended.
func (c *Control) ListOperations(ctx context.Context, filter OperationFilter) (Page[operation.Operation], error) {
	wanted := func(op operation.Operation) bool {
		return len(filter.States) == 0 || slices.Contains(filter.States, op.State)
	}
	recorded := filter
	if slices.ContainsFunc(filter.States, func(s operation.State) bool { return !s.Ended() }) {
		recorded.States = append(slices.Clone(filter.States), operation.Queued, operation.Running)
	}
	page, err := c.Store.Operations(ctx, recorded)
	if err != nil {
		return page, storeError(err)
	}
	items := page.Items[:0]
	for _, op := range page.Items {
		if op = c.engine.Newer(op); wanted(op) {
			items = append(items, op)
		}
	}
	page.Items = items
	if page.Total == nil || len(recorded.States) == len(filter.States) {
		return page, nil
	}
	open, err := c.Store.UnfinishedOperations(ctx)
	for _, op := range open {
		ofList := op.CreatedAt.After(filter.CreatedAfter) && (filter.ResourceID == "" || filter.ResourceID == op.Resource.ID)
		if ofList && !wanted(c.engine.Newer(op)) {
			*page.Total--
		}
	}
	return page, storeError(err)
}

// CancelOperation cancels what is queued, and a pause, resume or recover under way: the sandbox is then what node says
// that its machine is. A delete is never given up, and a running create is ended by a delete.
func (c *Control) CancelOperation(ctx context.Context, id sandbox.OperationID) (operation.Operation, error) {
	op, err := c.engine.Get(ctx, id)
	if err != nil {
		return op, operationError(id, err)
	}
	if op.Kind == string(sandbox.VerbDelete) && !op.State.Ended() {
		return op, &sandbox.Error{Code: sandbox.CodeInvalidState, Message: "a delete cannot be canceled",
			Cause: "what it removes cannot be brought back", Remedy: "wait for it to end"}
	}
	if op.Resource.Type == resourceSandbox && op.Kind != kindCreate && c.engine.Waiting(id) {
		// It need not wait for its turn to do nothing: an interrupted transition ends at its first step.
		c.engine.Interrupt(id, operation.CancelAsked())
		c.run(c.task(op))
	}
	op, err = c.engine.Cancel(ctx, id)
	return op, operationError(id, err)
}

func operationError(id sandbox.OperationID, err error) error {
	if errors.Is(err, store.ErrNotFound) {
		return &sandbox.Error{Code: sandbox.CodeNotFound, Message: "there is no such operation", Cause: string(id),
			Remedy: "operations can be read for 7 days"}
	}
	return storeError(err)
}
