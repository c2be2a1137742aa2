package control

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/space-sandbox/space/internal/failpoint"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
	"github.com/space-sandbox/space/internal/telemetry"
)

// Times of the sweep of leases.
const (
	clockCheck  = 5 * time.Second // how soon a jump of the wall clock is seen
	busyCheck   = time.Second     // how soon a lease that ended while an operation was under way is looked at again
	firstSweep  = time.Second     // until an expiry that failed is tried again; doubled with each failure
	lastSweep   = time.Minute
	sweepAtOnce = 1000 // leases that are looked at together
)

// errNotDue refuses the expiry of a lease that was extended, removed or has stopped, or whose sandbox is busy.
var errNotDue = errors.New("the lease does not end now")

// checkLease refuses a lease that cannot be.
func checkLease(ttl time.Duration, expiry sandbox.Expiry) error {
	if ttl < sandbox.MinLease || ttl > sandbox.MaxLease {
		return invalid("lease.ttl_seconds", fmt.Sprintf("must be %.0f to %.0f", sandbox.MinLease.Seconds(), sandbox.MaxLease.Seconds()))
	}
	if expiry != sandbox.ExpireDelete && expiry != sandbox.ExpirePause {
		return invalid("lease.on_expiry", "must be delete or pause")
	}
	return nil
}

// patchLease returns a lease with p applied.
func patchLease(old *sandbox.Lease, p LeasePatch, state sandbox.State, now time.Time) (*sandbox.Lease, error) {
	if p.Remove {
		return nil, nil
	}
	next := sandbox.Lease{TTL: p.TTL, OnExpiry: sandbox.ExpireDelete, Remaining: p.TTL}
	if old != nil {
		next.OnExpiry = old.OnExpiry
		if p.Extend {
			next.TTL, next.Remaining = old.TTL, old.Left(now)+p.TTL
		}
	}
	if p.OnExpiry != "" {
		next.OnExpiry = p.OnExpiry
	}
	if err := checkLease(p.TTL, next.OnExpiry); err != nil {
		return nil, err
	}
	if next.Remaining > sandbox.MaxLease {
		return nil, invalid("lease.ttl_seconds", fmt.Sprintf("would make the lease longer than %.0f seconds", sandbox.MaxLease.Seconds()))
	}
	if state.LeasePasses() {
		next.Start(now)
	}
	return &next, nil
}

// alarm wakes the sweep when a lease ends earlier than it is asleep for.
type alarm struct {
	mu    sync.Mutex
	until time.Time // when the sweep wakes by itself
	ring  chan struct{}
}

func newAlarm() *alarm { return &alarm{ring: make(chan struct{}, 1)} }

// set says how long the sweep sleeps now.
func (a *alarm) set(until time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.until = until
}

// shorten says that the sweep wakes by itself at t, if that is earlier than it has said. Nobody is woken.
func (a *alarm) shorten(t time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if t.Before(a.until) {
		a.until = t
	}
}

// notLaterThan rings when the sweep would sleep beyond t.
func (a *alarm) notLaterThan(t time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if t.Before(a.until) {
		a.until = t
		select {
		case a.ring <- struct{}{}:
		default: // it rings already
		}
	}
}

// sweepLeases ends leases until ctx ends.
func (c *Control) sweepLeases(ctx context.Context) {
	s := &sweep{c: c, failed: map[sandbox.ID]failedExpiry{}}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-c.outbox.sweep.ring:
		case <-ctx.Done():
			return
		}
		if by, err := c.outbox.follow(ctx); err != nil && ctx.Err() == nil {
			c.Logger.Error("leases could not follow a jump of the clock", "error", err)
		} else if by != 0 {
			c.Logger.Warn("the clock jumped; leases follow it", "by", by)
		}
		// What is written from here on rings when it ends before the next look.
		now := c.outbox.leases.now()
		c.outbox.sweep.set(now.Add(clockCheck))
		next := min(s.look(ctx, now), clockCheck)
		c.outbox.sweep.shorten(now.Add(next))
		timer.Reset(next)
	}
}

// sweep is what the sweep of leases remembers.
type sweep struct {
	c      *Control
	failed map[sandbox.ID]failedExpiry
}

// failedExpiry is an expiry that was begun, or could not be, and whose lease is still there.
type failedExpiry struct {
	again time.Time
	delay time.Duration
}

// look ends the leases that have ended by now, and returns when to look again.
func (s *sweep) look(ctx context.Context, now time.Time) time.Duration {
	boxes, err := s.c.Store.EndingLeases(ctx, sweepAtOnce+len(s.failed))
	if err != nil {
		if ctx.Err() == nil {
			s.c.Logger.Error("leases could not be read", "error", err)
		}
		return firstSweep
	}
	next, still := clockCheck, map[sandbox.ID]failedExpiry{}
	for _, box := range boxes {
		if left := box.Lease.Left(now); left > 0 {
			next = min(next, left)
			break // the others end later
		}
		f, known := s.failed[box.ID]
		switch {
		case known && now.Before(f.again):
			next = min(next, f.again.Sub(now))
		case box.OperationID != "":
			next = min(next, busyCheck)
		default:
			f.delay = min(max(2*f.delay, firstSweep), lastSweep)
			f.again = now.Add(f.delay)
			known = true
			next = min(next, f.delay)
			if err := s.c.expireLease(ctx, box); err != nil && !errors.Is(err, errNotDue) && ctx.Err() == nil {
				s.c.Logger.Error("a lease's end could not be acted on; trying again", "sandbox_id", box.ID, "error", err)
			}
		}
		if known {
			still[box.ID] = f
		}
	}
	for id, f := range s.failed {
		if _, listed := still[id]; !listed && s.undecided(ctx, id) && now.Before(f.again.Add(lastSweep)) {
			still[id] = f
		}
	}
	s.failed = still
	return max(next, time.Millisecond)
}

// undecided reports whether it is open how the expiry of a sandbox ends: while it is being paused, its lease stands still,
// and when that fails, it is due again.
func (s *sweep) undecided(ctx context.Context, id sandbox.ID) bool {
	box, err := s.c.Store.Sandbox(ctx, id)
	return err == nil && (box.State == sandbox.StatePausing || box.State == sandbox.StateRunning)
}

// expireLease does what a lease says for its end, by the calls that clients make.
func (c *Control) expireLease(ctx context.Context, box sandbox.Sandbox) error {
	failpoint.Hit(failpoint.LeaseEnds)
	ctx = telemetry.WithTrace(ctx, telemetry.NewTrace())
	c.Logger.InfoContext(ctx, "a lease ended", "sandbox_id", box.ID, "on_expiry", box.Lease.OnExpiry, "state", box.State)
	call := Call{onAccept: func(ctx context.Context, tx store.Tx, result string) error {
		now, err := c.due(ctx, tx, box.ID)
		if err != nil {
			return err
		}
		if now.Lease.OnExpiry != box.Lease.OnExpiry || now.State != box.State {
			return errNotDue
		}
		return leaseExpired(tx, now, sandbox.OperationID(result))
	}}
	switch {
	case box.Lease.OnExpiry == sandbox.ExpireDelete:
		_, err := c.DeleteSandbox(ctx, call, string(box.ID))
		return err
	case box.State == sandbox.StateFailed:
		return c.endLease(ctx, box.ID)
	}
	_, err := c.PauseSandbox(ctx, call, string(box.ID))
	return err
}

// due returns a sandbox whose lease has ended and which is not busy, as it is in tx; else errNotDue.
func (c *Control) due(ctx context.Context, tx store.Tx, id sandbox.ID) (sandbox.Sandbox, error) {
	box, err := tx.Sandbox(ctx, id)
	if err != nil {
		return box, err
	}
	if box.Lease == nil || box.Lease.ExpiresAt.IsZero() || box.Lease.Left(c.outbox.leases.now()) > 0 || box.OperationID != "" {
		return box, errNotDue
	}
	return box, nil
}

// endLease ends the lease of a failed sandbox that was to be paused: there is nothing to pause, and its disk is kept.
func (c *Control) endLease(ctx context.Context, id sandbox.ID) error {
	return c.Store.Update(ctx, func(tx store.Tx) error {
		box, err := c.due(ctx, tx, id)
		if err != nil {
			return err
		}
		if box.State != sandbox.StateFailed || box.Lease.OnExpiry != sandbox.ExpirePause {
			return errNotDue
		}
		box.Lease.Stop(c.outbox.leases.now())
		_, err = tx.UpdateSandbox(box)
		return err
	})
}
