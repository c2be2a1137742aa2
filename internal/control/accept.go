package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
)

// Kinds of operations.
const (
	kindCreate = "create"
	kindDelete = "delete"
)

const resourceSandbox = "sandbox"

// errReplay ends a transaction that found its request answered already.
var errReplay = errors.New("this request was answered before")

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

// CancelOperation cancels a queued create. A delete is never given up, and a running create is ended by a delete.
func (c *Control) CancelOperation(ctx context.Context, id sandbox.OperationID) (operation.Operation, error) {
	op, err := c.engine.Get(ctx, id)
	if err != nil {
		return op, operationError(id, err)
	}
	if op.Kind == kindDelete && !op.State.Ended() {
		return op, &sandbox.Error{Code: sandbox.CodeInvalidState, Message: "a delete cannot be canceled",
			Cause: "what it removes cannot be brought back", Remedy: "wait for it to end"}
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
