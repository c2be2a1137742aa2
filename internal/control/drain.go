package control

import (
	"context"
	"time"

	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
)

// metaDraining is the name under which the record says since when the node is being drained; "" for not.
const metaDraining = "draining_since"

// retryDrain is when a client may look whether a drain is over.
const retryDrain = 30 * time.Second

// Drain makes control refuse creates and recoveries, or take them again; all else goes on. It lasts over restarts. Once
// it has returned, none is accepted any more, and those that were are under way.
func (c *Control) Drain(ctx context.Context, on bool) (DrainState, error) {
	if err := c.setDrain(ctx, on); err != nil {
		return DrainState{}, storeError(err)
	}
	live, err := c.Store.LiveSandboxes(ctx)
	return DrainState{Draining: on, UnderWay: c.engine.Unfinished(), Sandboxes: len(live)}, storeError(err)
}

// DrainState is what stands in the way of stopping.
type DrainState struct {
	Draining  bool
	UnderWay  int // operations that have not ended
	Sandboxes int // that are not deleted
}

func (c *Control) setDrain(ctx context.Context, on bool) error {
	c.drainLock.Lock()
	defer c.drainLock.Unlock()
	if c.draining.Load() == on {
		return nil
	}
	since := ""
	if on {
		since = c.Now().UTC().Format(time.RFC3339)
		c.draining.Store(true) // before the commit: whatever was accepted before is in the record behind it
	}
	if err := c.Store.Update(ctx, func(tx store.Tx) error { return tx.SetMeta(metaDraining, since) }); err != nil {
		c.draining.Store(!on)
		return err
	}
	c.draining.Store(on)
	c.Logger.InfoContext(ctx, "whether new work is taken has changed", "draining", on, "under_way", c.engine.Unfinished())
	return nil
}

// openDrain goes on as the record says.
func (c *Control) openDrain(ctx context.Context) error {
	since, err := c.Store.Meta(ctx, metaDraining)
	if isMissing(err) {
		return nil
	}
	c.draining.Store(since != "")
	return err
}

func drained() *sandbox.Error {
	return &sandbox.Error{Code: sandbox.CodeDraining, Message: "this host takes no new work; nothing happened",
		Cause: "it is being drained; what it has goes on", Remedy: "try again later, or have an operator end it: space drain --undo",
		RetryAfter: retryDrain}
}
