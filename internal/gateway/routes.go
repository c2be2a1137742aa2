package gateway

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"regexp"
	"sync"

	gatewayv1 "github.com/space-sandbox/space/api/proto/gateway/v1"
	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/ingress"
	"github.com/space-sandbox/space/internal/sandbox"
)

// route is one sandbox in one generation, reachable or held. Connections belong to a route and end with it: a later
// generation, which may have the same addresses, never meets them.
type route struct {
	id         sandbox.ID
	generation int64
	token      string
	room       *room
	published  context.Context // its cause is why the route went
	withdraw   context.CancelCauseFunc
	resync     chan struct{} // holds at most one token: the watcher is to begin anew

	// Guarded by the gateway's lock; see hold.go.
	link *link         // nil while the machine is held
	held string        // why it is
	turn chan struct{} // closed and replaced when link changes

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
	held       string
	sessions   map[sandbox.CommandID]sandbox.ProcessID
}

var heldReason = regexp.MustCompile(`^[a-z_]{0,32}$`)

var agentToken = regexp.MustCompile(`^[0-9a-f]{64}$`)

func parseRoute(m *gatewayv1.Route) (wanted, error) {
	id, err := sandbox.ParseID(m.GetSandboxId())
	if err != nil {
		return wanted{}, err
	}
	if !agentToken.MatchString(m.GetAgentToken()) {
		return wanted{}, sandbox.Errorf(sandbox.CodeInvalidArgument, "the agent token of %s has not 64 hex digits", id)
	}
	if !heldReason.MatchString(m.GetHeld()) {
		return wanted{}, sandbox.Errorf(sandbox.CodeInvalidArgument, "why %s is held is not one word", id)
	}
	w := wanted{id: id, generation: m.GetGeneration(), token: m.GetAgentToken(), held: m.GetHeld(), sessions: map[sandbox.CommandID]sandbox.ProcessID{}}
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
	switch {
	case rt == nil:
		rt = &route{id: w.id, generation: w.generation, token: w.token, resync: make(chan struct{}, 1), turn: make(chan struct{}),
			room: g.board.open(w.id), sessions: map[sandbox.CommandID]sandbox.ProcessID{}, processes: map[sandbox.ProcessID]bool{}}
		rt.learn(w.sessions)
		rt.published, rt.withdraw = context.WithCancelCause(context.Background())
		g.routes[w.id] = rt
		g.work.Go(func() { g.watchAgent(rt) })
	case rt.learn(w.sessions):
		rt.restart()
	}
	if w.held != "" {
		rt.hold(w.held)
	} else {
		g.release(rt)
	}
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
	rt.withdraw(cause)
	rt.room.close()
	if rt.link != nil {
		rt.link.guest.Close()
	}
}

// lookup finds a sandbox that is published and not held.
func (g *Gateway) lookup(text string) (reached, error) {
	id, err := sandbox.ParseID(text)
	if err != nil {
		return reached{}, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.reach(id)
}

// reach returns the route of a sandbox and the link to its machine. Call with the lock.
func (g *Gateway) reach(id sandbox.ID) (reached, error) {
	rt, err := g.find(id)
	if err != nil {
		return reached{}, err
	}
	if rt.link == nil {
		return reached{}, rt.pause().Refusal()
	}
	return reached{rt, rt.link}, nil
}

// find returns the route of a sandbox, held or not. Call with the lock.
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
