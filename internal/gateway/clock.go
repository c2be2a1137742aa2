package gateway

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	// clockSlowest is how long a guest may take to tell its time for the answer to be worth anything.
	clockSlowest = time.Second
	// clockTolerance is how far a guest's clock may be off without being touched, besides what cannot be measured.
	clockTolerance = 10 * time.Millisecond
)

// keepClock keeps a guest's clock right until ctx ends, over the connection of its watch: a guest that was stopped or
// starved lags behind. What a guest says of its time is used for nothing but its own clock, so that one that lies harms
// its own; and it costs two small calls each time at most, whatever it answers.
func (g *Gateway) keepClock(ctx context.Context, rt reached) {
	for {
		select {
		case <-time.After(time.Until(rt.clockDue)):
		case <-ctx.Done():
			return
		}
		rt.clockDue = time.Now().Add(g.deps.ClockEvery*9/10 + rand.N(g.deps.ClockEvery/5+1)) // not all guests at once
		off, err := g.adjustClock(ctx, rt)
		if ctx.Err() != nil { // not known: the next watch asks again
			rt.clockDue = time.Now().Add(min(clockSlowest, g.deps.ClockEvery))
			return
		}
		if err != nil || off != 0 {
			g.deps.Logger.Debug("the clock of a guest", "sandbox_id", rt.id, "off", off, "error", err)
		}
	}
}

// adjustClock compares the guest's clock with ours and moves it when it is off. The amount is what is sent, not the time:
// a call that arrives late does no harm.
func (g *Gateway) adjustClock(ctx context.Context, rt reached) (off time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*clockSlowest)
	defer cancel()
	ours, began := g.deps.Now(), time.Now()
	theirs, err := rt.guest.AdjustClock(ctx, 0)
	if err != nil {
		return 0, err
	}
	took := time.Since(began)
	off = theirs.Sub(ours.Add(took / 2))
	if took > clockSlowest || off.Abs() <= took/2+clockTolerance {
		return 0, nil
	}
	_, err = rt.guest.AdjustClock(ctx, -off)
	return off, err
}
