package control

import (
	"context"
	"fmt"

	nodev1 "github.com/space-sandbox/space/api/proto/node/v1"
	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
)

// copyPool is the kind of pool in which a new disk is written in full.
const copyPool = "copy"

// admit reserves what a create or recovery of box needs, in the transaction that accepts op: a place, memory, what it
// may write to the pool, and a turn. Transactions run one after another, so that requests at the same moment see each
// other. Whoever accepts gives it all back when op is refused after all, and with its end.
func (c *Control) admit(ctx context.Context, tx store.Tx, op sandbox.OperationID, box sandbox.Sandbox, create bool) error {
	if c.draining.Load() {
		return drained()
	}
	if err := c.reserve(ctx, tx, op, box, create); err != nil {
		return err
	}
	return c.turns.join(op, box.Owner)
}

// reserve is admit without the turn.
func (c *Control) reserve(ctx context.Context, tx store.Tx, op sandbox.OperationID, box sandbox.Sandbox, create bool) error {
	if err := c.admitMemory(ctx, tx, box); err != nil {
		return err
	}
	r := reservation{bytes: startBytes}
	if create {
		r.place = box.ID
		r.bytes = c.createBytes(ctx, tx, box)
	} else if box.Driver != uncounted {
		r.memoryMiB = int64(box.MemoryMiB) // in the record from its claim on
	}
	return c.budget.take(op, r, c.Limits.Sandboxes)
}

// createBytes is what the create of box may write to the pool itself.
func (c *Control) createBytes(ctx context.Context, r store.Reader, box sandbox.Sandbox) int64 {
	if info := c.info.Load(); info != nil && info.GetPool().GetKind() != copyPool {
		return startBytes
	}
	tpl, err := r.Template(ctx, box.Template.Digest)
	if err != nil {
		return startBytes // gone: the create will fail
	}
	return startBytes + tpl.SizeBytes
}

// admitMemory fails when the host has no memory for box.
func (c *Control) admitMemory(ctx context.Context, tx store.Tx, box sandbox.Sandbox) error {
	if box.Driver == uncounted {
		return nil
	}
	usage, err := tx.Usage(ctx, uncounted)
	if err != nil {
		return err
	}
	have, pending := int64(c.info.Load().GetMemoryBytes()>>20), c.budget.pending()
	if reserved := usage.MemoryMiB + pending; reserved+int64(box.MemoryMiB) > have {
		return &sandbox.Error{Code: sandbox.CodeCapacity, Message: "the host has no memory for another sandbox of this size; nothing happened",
			Cause:  fmt.Sprintf("%d of %d MiB are reserved by %d sandboxes, %d more were asked for", reserved, have, usage.Sandboxes, box.MemoryMiB),
			Remedy: "delete sandboxes, or ask for less memory_mib", RetryAfter: retryRoom}
	}
	return nil
}

// refuse gives back what admit has reserved for an operation that was not accepted.
func (c *Control) refuse(op sandbox.OperationID) {
	c.budget.refuse(op)
	c.turns.leave(op)
}

// discharge gives back what an operation has reserved that has ended.
func (c *Control) discharge(op sandbox.OperationID) {
	c.budget.end(op)
	c.turns.leave(op)
}

// readmit reserves again what an operation had reserved that an earlier process has left unfinished.
func (c *Control) readmit(ctx context.Context, op operation.Operation) error {
	create := op.Kind == kindCreate
	if !create && op.Kind != string(sandbox.VerbRecover) {
		return nil
	}
	box, err := c.Store.Sandbox(ctx, sandbox.ID(op.Resource.ID))
	if err != nil {
		return fmt.Errorf("read the sandbox of operation %s: %w", op.ID, err)
	}
	if box.OperationID != op.ID {
		return nil // it waits for another one, or for nothing but its end
	}
	r := reservation{bytes: startBytes}
	switch {
	case create:
		r.place, r.bytes = box.ID, c.createBytes(ctx, c.Store, box)
	case box.State == sandbox.StateFailed && box.Driver != uncounted:
		r.memoryMiB = int64(box.MemoryMiB)
	}
	c.budget.adopt(op.ID, r)
	c.turns.admit(op.ID, box.Owner)
	return nil
}

// lookAtPool brings control's picture of the pool up to date, at most once in a while.
func (c *Control) lookAtPool(ctx context.Context) error {
	return c.budget.look(ctx, func(ctx context.Context) error {
		_, err := c.askNode(ctx)
		return err
	})
}

// askNode asks node for its description of itself.
func (c *Control) askNode(ctx context.Context) (*nodev1.GetNodeResponse, error) {
	seen := c.budget.written()
	res, err := call(ctx, c.Limits.CallTimeout, c.Deps.Node.GetNode, &nodev1.GetNodeRequest{})
	if err == nil {
		c.info.Store(res)
	}
	if err == nil || ctx.Err() == nil { // else the caller has gone, which says nothing
		c.budget.learn(res, err, seen)
	}
	return res, err
}
