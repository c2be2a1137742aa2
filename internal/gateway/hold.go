package gateway

import (
	"context"
	"net"
	"time"

	"github.com/space-sandbox/space/internal/guest"
	"github.com/space-sandbox/space/internal/ingress"
	"github.com/space-sandbox/space/internal/telemetry"
)

// link is what a route has while its machine runs: the connections, and with them all streams and calls. A machine that
// is held has none: what is under way ends with *ingress.PausedError, and the machine is met over new connections when it
// goes on. The route itself, its sessions and what is known of its processes stay.
type link struct {
	guest *guest.Client
	life  context.Context // ends with the route or the hold; its cause is why
	end   context.CancelCauseFunc

	clockDue time.Time // when the machine's clock is to be looked at next; of its watcher
}

// reached is a route together with the link it had when it was asked for.
type reached struct {
	*route
	*link
}

// hold ends what runs over a route because its machine is about to stand still. Call with the gateway's lock.
func (rt *route) hold(reason string) {
	rt.held = reason
	if rt.link == nil {
		return
	}
	rt.link.end(rt.pause())
	rt.link.guest.Close()
	rt.link = nil
	rt.turned()
}

// release makes a route reachable; one that is so already stays as it is. Call with the lock.
func (g *Gateway) release(rt *route) {
	rt.held = ""
	if rt.link != nil {
		return
	}
	lk := &link{guest: guest.NewClient(guest.Config{Token: rt.token, Trace: telemetry.Inject, Dial: func(ctx context.Context) (net.Conn, error) {
		return g.deps.DialAgent(ctx, rt.id)
	}})}
	lk.life, lk.end = context.WithCancelCause(rt.published)
	rt.link = lk
	rt.turned()
}

// turned wakes who waits for a change of the link.
func (rt *route) turned() {
	close(rt.turn)
	rt.turn = make(chan struct{})
}

// pause is why the route's machine cannot be reached while it is held.
func (rt *route) pause() *ingress.PausedError {
	return &ingress.PausedError{SandboxID: rt.id, Reason: rt.held}
}

// await waits until a route's machine is not held. It fails with the cause of the route's end or of ctx's.
func (g *Gateway) await(ctx context.Context, rt *route) (*link, error) {
	for {
		g.mu.Lock()
		lk, turn := rt.link, rt.turn
		g.mu.Unlock()
		switch {
		case rt.published.Err() != nil:
			return nil, context.Cause(rt.published)
		case lk != nil:
			return lk, nil
		}
		select {
		case <-turn:
		case <-rt.published.Done():
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
