package control

import (
	"context"
	"fmt"
	"sync"
	"time"

	gatewayv1 "github.com/space-sandbox/space/api/proto/gateway/v1"
	"github.com/space-sandbox/space/internal/failpoint"
	"github.com/space-sandbox/space/internal/sandbox"
)

// routes is what the gateway should serve.
type routes struct {
	// push orders what changes single routes at the gateway (readers) against Configure (writer), which replaces them
	// all: a change made while a Configure is put together would be undone by it. Nothing that waits for a guest holds
	// it: it would hold up every sandbox.
	push sync.RWMutex

	mu    sync.Mutex
	boxes map[sandbox.ID]route
}

type route struct {
	generation int64
	token      string
	held       string // why the machine stands still; "" when it runs
}

func newRoutes() *routes { return &routes{boxes: map[sandbox.ID]route{}} }

// set makes held the route of box: why it stands still, "" when it runs.
func (r *routes) set(box sandbox.Sandbox, held string) route {
	r.mu.Lock()
	defer r.mu.Unlock()
	rt := route{box.Generation, box.AgentToken, held}
	r.boxes[box.ID] = rt
	return rt
}

func (r *routes) remove(id sandbox.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.boxes, id)
}

// open reports whether the guest of a sandbox is to be spoken with.
func (r *routes) open(id sandbox.ID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	rt, ok := r.boxes[id]
	return ok && rt.held == ""
}

func (r *routes) all() map[sandbox.ID]route {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[sandbox.ID]route, len(r.boxes))
	for id, rt := range r.boxes {
		out[id] = rt
	}
	return out
}

// maxRouteSessions is what an agent's table of processes holds: of older sessions that have ended no guest knows any more.
// A sandbox may have had any number, and a Configure names those of all sandboxes.
const maxRouteSessions = 4096

// message is a route with its sessions.
func (c *Control) message(ctx context.Context, id sandbox.ID, rt route) (*gatewayv1.Route, error) {
	commands, err := c.Store.LastCommands(ctx, id, maxRouteSessions)
	if err != nil {
		return nil, fmt.Errorf("read command sessions: %w", err)
	}
	msg := &gatewayv1.Route{SandboxId: string(id), Generation: rt.generation, AgentToken: rt.token, Held: rt.held}
	for _, cmd := range commands {
		msg.Sessions = append(msg.Sessions, &gatewayv1.Session{CommandId: string(cmd.ID), ProcessId: string(cmd.ProcessID)})
	}
	return msg, nil
}

// heldPaused is why the machine of a paused sandbox stands still, unless node has a reason of its own.
const heldPaused = "paused"

// heldOf is why the machine of a sandbox in box's state is not to be spoken with; "" when it is.
func heldOf(box sandbox.Sandbox) string {
	switch {
	case box.State == sandbox.StateRunning:
		return ""
	case box.Reason == sandbox.ReasonPoolFull:
		return box.Reason
	}
	return heldPaused
}

// publish makes a sandbox whose guest is ready reachable.
func (c *Control) publish(ctx context.Context, box sandbox.Sandbox) error {
	if err := c.pushRoute(ctx, box.ID, c.routes.set(box, ""), c.Limits.CallTimeout); err != nil {
		return err
	}
	failpoint.Hit(failpoint.RoutePublished)
	return nil
}

// reroute sets a sandbox's route at a gateway that is there; another one gets it when it is configured. With held the
// streams of the sandbox end and calls are refused.
func (c *Control) reroute(ctx context.Context, box sandbox.Sandbox, held string) {
	rt := c.routes.set(box, held)
	if c.gateway.check() != nil {
		return
	}
	// Whoever interrupts this sets the route anew.
	if err := c.pushRoute(ctx, box.ID, rt, unpublishTimeout); err != nil && ctx.Err() == nil {
		c.gateway.reconnect(fmt.Errorf("route of %s: %w", box.ID, err))
	}
}

func (c *Control) pushRoute(ctx context.Context, id sandbox.ID, rt route, timeout time.Duration) error {
	c.routes.push.RLock()
	defer c.routes.push.RUnlock()
	msg, err := c.message(ctx, id, rt)
	if err != nil {
		return err
	}
	_, err = call(ctx, timeout, c.Deps.Gateway.Publish, &gatewayv1.PublishRequest{Route: msg})
	return err
}

// unpublishTimeout is short: a gateway that does not answer gets all routes anew when it is back.
const unpublishTimeout = 5 * time.Second

// unpublish ends the sandbox's streams and takes it out of the gateway's routes. A gateway that is away cannot serve
// it, and is configured without it when it is back; one that fails to answer is made to reconnect.
func (c *Control) unpublish(ctx context.Context, id sandbox.ID, reason string) {
	c.routes.remove(id)
	c.routes.push.RLock()
	defer c.routes.push.RUnlock()
	if c.gateway.check() != nil {
		return
	}
	_, err := call(ctx, unpublishTimeout, c.Deps.Gateway.Unpublish, &gatewayv1.UnpublishRequest{SandboxId: string(id), Reason: reason})
	if err != nil {
		c.gateway.reconnect(fmt.Errorf("unpublish %s: %w", id, err))
	}
}

// configure brings the gateway up to date from scratch.
func (c *Control) configure(ctx context.Context) error {
	c.routes.push.Lock()
	defer c.routes.push.Unlock()
	req := &gatewayv1.ConfigureRequest{VerifyKey: c.Signer.PublicKey()}
	for id, rt := range c.routes.all() {
		msg, err := c.message(ctx, id, rt)
		if err != nil {
			return err
		}
		req.Routes = append(req.Routes, msg)
	}
	if _, err := call(ctx, c.Limits.CallTimeout, c.Deps.Gateway.Configure, req); err != nil {
		return err
	}
	c.gateway.set(true) // before the lock is given back: no unpublish may fall between
	return nil
}
