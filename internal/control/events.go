package control

import (
	"context"
	"time"

	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
)

// How long events are kept, and how many at most.
const (
	eventAge = 24 * time.Hour
	// maxKeptEvents bounds the room they take: an event has about 1 KiB.
	maxKeptEvents = 1 << 19
	// purgeBatch bounds how long one removal holds up others.
	purgeBatch         = 5000
	eventPurgeInterval = time.Minute
)

// ReadEvents returns what follows event after and matches. When there is nothing, it waits for it, at most wait; an
// empty page tells where to go on. With an after below zero it returns the end of the log at once. missed says that
// events between after and the page are gone, or that after is from another log: go on at the page's Oldest-1.
func (c *Control) ReadEvents(ctx context.Context, after int64, filter EventFilter, wait time.Duration) (page EventPage, missed bool, err error) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		news := c.outbox.news.wait()
		page, err = c.Store.Events(ctx, max(after, 0), filter, store.MaxEvents)
		missed = after >= 0 && (after < page.Oldest-1 || after > page.Newest)
		switch {
		case err != nil:
			return EventPage{}, false, storeError(err)
		case after < 0:
			return EventPage{Next: page.Newest, Oldest: page.Oldest, Newest: page.Newest}, false, nil
		case len(page.Events) > 0, missed:
			return page, missed, nil
		}
		after = page.Next
		if page.Next < page.Newest {
			continue // on through what does not match
		}
		select {
		case <-news:
		case <-timer.C:
			return page, false, nil
		case <-ctx.Done():
			return page, false, nil
		case <-c.base.Done():
			return page, false, &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "SPACE is stopping", Remedy: "try again in a moment"}
		}
	}
}

// SandboxID returns the id that ref stands for. An id need not be known: events outlive the record.
func (c *Control) SandboxID(ctx context.Context, ref string) (sandbox.ID, error) {
	if id, err := sandbox.ParseID(ref); err == nil {
		return id, nil
	}
	box, err := find(ctx, c.Store, ref)
	return box.ID, err
}

// purgeEvents removes old events, a part at a time.
func (c *Control) purgeEvents(ctx context.Context) {
	for {
		n := int64(0)
		err := c.Store.Update(ctx, func(tx store.Tx) (err error) {
			n, err = tx.PurgeEvents(c.Now().Add(-eventAge), maxKeptEvents, purgeBatch)
			return err
		})
		if err != nil && ctx.Err() == nil {
			c.Logger.Error("old events could not be purged", "error", err)
		}
		if err != nil || n < purgeBatch {
			return
		}
	}
}

// purgeOldEvents calls purgeEvents until ctx ends.
func (c *Control) purgeOldEvents(ctx context.Context) {
	ticker := time.NewTicker(eventPurgeInterval)
	defer ticker.Stop()
	for {
		c.purgeEvents(ctx)
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}
