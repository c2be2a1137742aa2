package gateway

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"net"
	"regexp"
	"sync"

	gatewayv1 "github.com/space-sandbox/space/api/proto/gateway/v1"
	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/guest"
	"github.com/space-sandbox/space/internal/ingress"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/telemetry"
)

// route is one reachable sandbox in one generation. Connections belong to a route and end with it: a later generation,
// which may have the same addresses, never meets them.
type route struct {
	id         sandbox.ID
	generation int64
	token      string
	guest      *guest.Client
	room       *room
	life       context.Context // its cause is why the route went
	end        context.CancelCauseFunc
	resync     chan struct{} // holds at most one token: the watcher is to begin anew

	// A lock of its own: what a guest sends must not contend with other guests.
	mu        sync.Mutex
	sessions  map[sandbox.CommandID]sandbox.ProcessID
	processes map[sandbox.ProcessID]bool
}

// wanted is a checked Route message.
type wanted struct {
	id         sandbox.ID
	generation int64
	token      string
	sessions   map[sandbox.CommandID]sandbox.ProcessID
}

var agentToken = regexp.MustCompile(`^[0-9a-f]{64}$`)

func parseRoute(m *gatewayv1.Route) (wanted, error) {
	id, err := sandbox.ParseID(m.GetSandboxId())
	if err != nil {
		return wanted{}, err
	}
	if !agentToken.MatchString(m.GetAgentToken()) {
		return wanted{}, sandbox.Errorf(sandbox.CodeInvalidArgument, "the agent token of %s has not 64 hex digits", id)
	}
	w := wanted{id: id, generation: m.GetGeneration(), token: m.GetAgentToken(), sessions: map[sandbox.CommandID]sandbox.ProcessID{}}
	for _, s := range m.GetSessions() {
		command, err := sandbox.ParseCommandID(s.GetCommandId())
		if err != nil {
			return wanted{}, err
		}
		if w.sessions[command], err = sandbox.ParseProcessID(s.GetProcessId()); err != nil {
			return wanted{}, err
		}
	}
	return w, nil
}

// configure replaces key and routes. Routes that stay the same keep their connections and streams.
func (g *Gateway) configure(key ed25519.PublicKey, routes []wanted) error {
	if len(key) != ed25519.PublicKeySize {
		return sandbox.Errorf(sandbox.CodeInvalidArgument, "the verification key has %d bytes", len(key))
	}
	keep := make(map[sandbox.ID]bool, len(routes))
	for _, w := range routes {
		if keep[w.id] {
			return sandbox.Errorf(sandbox.CodeInvalidArgument, "two routes for %s", w.id)
		}
		keep[w.id] = true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return closing()
	}
	g.verifier = auth.NewVerifier(key)
	for id, rt := range g.routes {
		if !keep[id] {
			g.remove(rt, &ingress.LostError{Reason: "gone"})
		}
	}
	for _, w := range routes {
		g.put(w)
	}
	return nil
}

// publish adds or replaces one route.
func (g *Gateway) publish(w wanted) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return closing()
	}
	if g.verifier == nil {
		return unconfigured()
	}
	g.put(w)
	return nil
}

// unpublish takes a route away; without one it changes nothing.
func (g *Gateway) unpublish(id sandbox.ID, reason string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if rt := g.routes[id]; rt != nil {
		g.remove(rt, &ingress.LostError{Reason: reason})
	}
}

// put makes w a route. Call with the lock.
func (g *Gateway) put(w wanted) {
	rt := g.routes[w.id]
	if rt != nil && (rt.generation != w.generation || rt.token != w.token) {
		g.remove(rt, &ingress.LostError{Reason: fmt.Sprintf("replaced by generation %d", w.generation)})
		rt = nil
	}
	if rt != nil {
		if rt.learn(w.sessions) {
			rt.restart()
		}
		return
	}
	rt = &route{id: w.id, generation: w.generation, token: w.token, resync: make(chan struct{}, 1), room: g.board.open(w.id),
		sessions: map[sandbox.CommandID]sandbox.ProcessID{}, processes: map[sandbox.ProcessID]bool{}}
	rt.learn(w.sessions)
	rt.guest = guest.NewClient(guest.Config{Token: w.token, Trace: telemetry.Inject, Dial: func(ctx context.Context) (net.Conn, error) {
		return g.deps.DialAgent(ctx, w.id)
	}})
	rt.life, rt.end = context.WithCancelCause(context.Background())
	g.routes[w.id] = rt
	g.work.Go(func() { g.watchAgent(rt) })
}

// learn adds sessions and reports whether there are processes not known before. What is known stays: a session may have
// been made while control put its list together, and it ends with its route.
func (rt *route) learn(sessions map[sandbox.CommandID]sandbox.ProcessID) (news bool) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	for command, p := range sessions {
		if before, known := rt.sessions[command]; known && before != p {
			delete(rt.processes, before)
		}
		news = news || !rt.processes[p]
		rt.sessions[command], rt.processes[p] = p, true
	}
	return news
}

// restart makes the watcher fetch the whole state again.
func (rt *route) restart() {
	select {
	case rt.resync <- struct{}{}:
	default:
	}
}

// remove forgets a route and ends what runs over it. Call with the lock.
func (g *Gateway) remove(rt *route, cause error) {
	delete(g.routes, rt.id)
	g.shut(rt, cause)
}

// shut ends what runs over a route that has been taken out of the table.
func (g *Gateway) shut(rt *route, cause error) {
	rt.end(cause)
	rt.room.close()
	rt.guest.Close()
}

// lookup finds a published sandbox.
func (g *Gateway) lookup(text string) (*route, error) {
	id, err := sandbox.ParseID(text)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.find(id)
}

// find returns the route of a sandbox. Call with the lock.
func (g *Gateway) find(id sandbox.ID) (*route, error) {
	switch rt := g.routes[id]; {
	case rt != nil:
		return rt, nil
	case g.closed:
		return nil, closing()
	case g.verifier == nil:
		return nil, unconfigured()
	}
	return nil, &sandbox.Error{Code: sandbox.CodeNotFound, Message: "the sandbox is not reachable",
		Cause: "it is not running", Remedy: "look at its state: GET /v1/sandboxes/{id}"}
}

// session returns the process of a command session.
func (rt *route) session(command sandbox.CommandID) (process sandbox.ProcessID, known bool) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	process, known = rt.sessions[command]
	return process, known
}

// knows reports whether a process belongs to a session of the route.
func (rt *route) knows(id sandbox.ProcessID) bool {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	return rt.processes[id]
}

// addSession notes a session; added is false when it was known.
func (rt *route) addSession(command sandbox.CommandID, process sandbox.ProcessID) (added bool, err error) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if p, known := rt.sessions[command]; known {
		if p != process {
			return false, sandbox.Errorf(sandbox.CodeInvalidArgument, "the command session %s belongs to another process", command)
		}
		return false, nil
	}
	rt.sessions[command] = process
	rt.processes[process] = true
	return true, nil
}

// dropSession forgets a session whose process could not be made.
func (rt *route) dropSession(command sandbox.CommandID, process sandbox.ProcessID) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	delete(rt.sessions, command)
	delete(rt.processes, process)
}

func unconfigured() error {
	return &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the gateway is starting",
		Cause: "control has not configured it yet", Remedy: "try again in a moment"}
}

func closing() error {
	return &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the gateway is restarting", Remedy: "try again in a moment"}
}
