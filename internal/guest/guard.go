package guest

import (
	"context"
	"errors"
	"time"

	"github.com/space-sandbox/space/internal/sandbox"
)

// guard returns a context that ends once the agent does not answer any more, in one to two times PingAfter. A content on
// its way has a connection of its own, over which nothing may come for as long as the guest's disk takes. Call stop.
func (c *Client) guard(ctx context.Context) (guarded context.Context, stop context.CancelFunc) {
	ctx, end := context.WithCancelCause(ctx)
	go func() {
		tick := time.NewTicker(c.cfg.PingAfter)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			hello, stop := context.WithTimeout(ctx, c.cfg.PingAfter)
			_, err := c.Hello(hello)
			stop()
			if err != nil {
				end(tooSlow(err))
				return
			}
		}
	}()
	return ctx, func() { end(nil) }
}

// guardedError is what went wrong with a call under guarded, which was made from ctx.
func guardedError(ctx, guarded context.Context, err error) error {
	if silent, ok := errors.AsType[*sandbox.Error](context.Cause(guarded)); ok && ctx.Err() == nil {
		return silent
	}
	return callError(ctx, err)
}
