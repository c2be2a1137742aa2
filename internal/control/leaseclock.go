package control

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/space-sandbox/space/internal/store"
)

// maxClockDrift is how far the wall clock may be from where it was expected before the records follow it.
const maxClockDrift = 2 * time.Second

// leaseClock tells the time that leases are measured with. Records hold times of the wall clock, but while control runs
// they are compared with a clock that does not jump: when the wall clock does, the records are moved along with it.
type leaseClock struct {
	wall func() time.Time
	mono func() time.Duration // since some moment; never goes back, never jumps
	zero atomic.Int64         // wall clock when mono was 0, as the records see it; ns since 1970

	frame sync.RWMutex // held by every update; alone by the one that moves records and zero together
}

func newLeaseClock(wall func() time.Time, mono func() time.Duration) *leaseClock {
	c := &leaseClock{wall: wall, mono: mono}
	c.zero.Store(wall().UnixNano() - int64(mono()))
	return c
}

// hold keeps the clock from being moved until the returned function is called.
func (c *leaseClock) hold() (release func()) {
	c.frame.RLock()
	return c.frame.RUnlock
}

// now is the time that the records' times are compared with.
func (c *leaseClock) now() time.Time { return time.Unix(0, c.zero.Load()+int64(c.mono())).UTC() }

// drift is how far the wall clock has jumped since the records last followed it.
func (c *leaseClock) drift() time.Duration { return c.wall().Sub(c.now()) }

// follow moves leases along when the wall clock has jumped.
func (o *outbox) follow(ctx context.Context) (moved time.Duration, err error) {
	c := o.leases
	if by := c.drift(); by.Abs() <= maxClockDrift {
		return 0, nil
	}
	c.frame.Lock()
	defer c.frame.Unlock()
	by := c.drift()
	if err := o.update(ctx, func(tx store.Tx) error { return moveLeases(ctx, tx, by) }); err != nil {
		return 0, err
	}
	c.zero.Add(int64(by))
	return by, nil
}

// moveLeases moves the ends of all leases whose time passes.
func moveLeases(ctx context.Context, tx store.Tx, by time.Duration) error {
	boxes, err := tx.EndingLeases(ctx, maxLeases)
	if err != nil {
		return err
	}
	for _, box := range boxes {
		box.Lease.ExpiresAt = box.Lease.ExpiresAt.Add(by)
		if _, err := tx.UpdateSandbox(box); err != nil {
			return err
		}
	}
	return nil
}

// maxLeases is more than there can be sandboxes.
const maxLeases = 1 << 30

// openLeases puts right what a wall clock that was set back while control was away would do to leases: none may be
// longer than it was. How far the clock went back at least, the newest event says.
func (c *Control) openLeases(ctx context.Context, o *outbox) error {
	page, err := o.Events(ctx, 0, EventFilter{}, 1)
	if err != nil {
		return err
	}
	if page.Newest < page.Oldest {
		return nil
	}
	if page, err = o.Events(ctx, page.Newest-1, EventFilter{}, 1); err != nil || len(page.Events) == 0 {
		return err
	}
	back := page.Events[0].Time.Sub(c.Now())
	if back <= maxClockDrift {
		return nil
	}
	c.Logger.Warn("the clock was set back while control was away; leases follow it", "by", back)
	return o.Update(ctx, func(tx store.Tx) error { return moveLeases(ctx, tx, -back) })
}
