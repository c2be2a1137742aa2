package control

import (
	"fmt"
	"sync"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	gatewayv1 "github.com/space-sandbox/space/api/proto/gateway/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

// Bounds on process states that wait to be recorded. Recording may take as long as a guest likes, for the guest is told
// of it; so one sandbox has at most one state of each of its processes waiting, whatever its guest reports, and neither
// the others nor the gateway ever wait for it. What finds no room is dropped, and made up for: when the sandbox's states
// are recorded, its open sessions are asked for one by one.
const (
	maxPending        = 64 << 10 // of all sandboxes together, besides what each of them has for itself
	ownPending        = 256      // room that each sandbox has for itself, however many guests lie
	maxPendingSandbox = 8 << 10  // twice what an agent's table holds
)

// processWatch hands the events of one watch to the lanes of their sandboxes.
type processWatch struct {
	c    *Control
	seen processSets // those told and not ended since the last synced; the receiver's alone

	mu      sync.Mutex
	pending map[sandbox.ID]*pendingStates
	shared  int         // how much of maxPending is taken
	syncs   processSets // synced, and not yet at work
}

// pendingStates are the newest states of a sandbox's processes that are not yet at work.
type pendingStates struct {
	states map[sandbox.ProcessID]*agentv1.Process
	missed bool // one was dropped
}

type processSets map[sandbox.ID]map[sandbox.ProcessID]bool

func newProcessWatch(c *Control) *processWatch {
	return &processWatch{c: c, seen: processSets{}, pending: map[sandbox.ID]*pendingStates{}, syncs: processSets{}}
}

func (w *processWatch) process(e *gatewayv1.WatchResponse_ProcessChanged) error {
	id, err := sandbox.ParseID(e.GetSandboxId())
	if err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	process, err := sandbox.ParseProcessID(e.GetProcess().GetProcessId())
	if err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	w.note(id, process, processEnded(e.GetProcess()))
	if !w.put(id, process, e.GetProcess()) {
		return nil
	}
	w.c.events.do(string(id), func() {
		p, missed := w.take(id, process)
		if _, err := w.c.recordProcess(w.c.base, id, p); err != nil && w.c.base.Err() == nil {
			w.c.Logger.Error("a process state could not be recorded", "sandbox_id", id, "process_id", process, "error", err)
			w.c.gateway.reconnect(err) // all states are told again then
		}
		if missed {
			w.c.Logger.Warn("a guest reported more process states than there is room for; asking for those of open sessions", "sandbox_id", id)
			w.checkUnseen(id, nil)
		}
	})
	return nil
}

// note keeps which open sessions the agent has named, as far as there is room: others are asked for. One that has ended is
// not open any more when synced is at work.
func (w *processWatch) note(id sandbox.ID, process sandbox.ProcessID, ended bool) {
	switch {
	case ended:
		if delete(w.seen[id], process); len(w.seen[id]) == 0 {
			delete(w.seen, id)
		}
	case w.seen[id] == nil:
		w.seen[id] = map[sandbox.ProcessID]bool{process: true}
	case len(w.seen[id]) < maxPendingSandbox:
		w.seen[id][process] = true
	}
}

// put keeps the newest state of a process and reports whether somebody has to be sent for it: not when an older one
// still waits, which it replaces.
func (w *processWatch) put(id sandbox.ID, process sandbox.ProcessID, p *agentv1.Process) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	box := w.pending[id]
	if box == nil {
		box = &pendingStates{states: map[sandbox.ProcessID]*agentv1.Process{}}
		w.pending[id] = box
	}
	if _, waiting := box.states[process]; waiting {
		box.states[process] = p
		return false
	}
	if n := len(box.states); n >= ownPending {
		if n >= maxPendingSandbox || w.shared >= maxPending {
			box.missed = true
			return false
		}
		w.shared++
	}
	box.states[process] = p
	return true
}

// take returns the state that is to be recorded now; missed says that it is the last of its sandbox and that there were
// more than there was room for.
func (w *processWatch) take(id sandbox.ID, process sandbox.ProcessID) (p *agentv1.Process, missed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	box := w.pending[id]
	p = box.states[process]
	delete(box.states, process)
	if len(box.states) >= ownPending {
		w.shared--
	}
	if len(box.states) > 0 {
		return p, false
	}
	delete(w.pending, id)
	return p, box.missed
}

// synced looks at the open sessions that the agent did not name.
func (w *processWatch) synced(e *gatewayv1.WatchResponse_Synced) error {
	id, err := sandbox.ParseID(e.GetSandboxId())
	if err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	seen := w.seen[id]
	delete(w.seen, id)
	w.mu.Lock()
	_, waiting := w.syncs[id]
	w.syncs[id] = seen
	w.mu.Unlock()
	if waiting {
		return nil
	}
	w.c.events.do(string(id), func() {
		w.mu.Lock()
		seen := w.syncs[id]
		delete(w.syncs, id)
		w.mu.Unlock()
		w.checkUnseen(id, seen)
	})
	return nil
}

func (w *processWatch) checkUnseen(id sandbox.ID, seen map[sandbox.ProcessID]bool) {
	if err := w.c.checkUnseen(w.c.base, id, seen); err != nil && w.c.base.Err() == nil {
		w.c.Logger.Warn("sessions could not be compared with the agent's processes", "sandbox_id", id, "error", err)
	}
}
