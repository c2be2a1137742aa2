package node

import (
	"sync"

	nodev1 "github.com/space-sandbox/space/api/proto/node/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

// hub tells watchers about changes. A slow watcher costs one pending state per machine, never a queue without bound,
// and never misses the newest state.
type hub struct {
	mu   sync.Mutex
	last map[sandbox.ID]*nodev1.Machine
	subs map[*subscription]bool
}

func newHub() *hub {
	return &hub{last: map[sandbox.ID]*nodev1.Machine{}, subs: map[*subscription]bool{}}
}

// subscription is one watcher's pending changes: a nil machine means deleted.
type subscription struct {
	hub     *hub
	pending map[sandbox.ID]*nodev1.Machine
	wake    chan struct{}
}

// set publishes the state of a machine; nil says it is deleted.
func (h *hub) set(id sandbox.ID, m *nodev1.Machine) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m == nil {
		delete(h.last, id)
	} else {
		h.last[id] = m
	}
	for s := range h.subs {
		s.pending[id] = m
		s.signal()
	}
}

func (s *subscription) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// snapshot returns all machines.
func (h *hub) snapshot() []*nodev1.Machine {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]*nodev1.Machine, 0, len(h.last))
	for _, m := range h.last {
		out = append(out, m)
	}
	return out
}

// subscribe returns a subscription whose first batch is every machine known now.
func (h *hub) subscribe() *subscription {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &subscription{hub: h, pending: map[sandbox.ID]*nodev1.Machine{}, wake: make(chan struct{}, 1)}
	for id, m := range h.last {
		s.pending[id] = m
	}
	h.subs[s] = true
	return s
}

// take returns and clears what is pending.
func (s *subscription) take() map[sandbox.ID]*nodev1.Machine {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	p := s.pending
	s.pending = map[sandbox.ID]*nodev1.Machine{}
	return p
}

func (s *subscription) close() {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	delete(s.hub.subs, s)
}
