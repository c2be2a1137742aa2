package control

import (
	"context"
	"fmt"
	"sync"

	"golang.org/x/sync/semaphore"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	gatewayv1 "github.com/space-sandbox/space/api/proto/gateway/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

// Bounds on process states that wait to be recorded. Recording may take as long as a guest likes, for the guest is told
// of it; so one sandbox has at most one state of each of its processes waiting, whatever its guest reports, and the
// others do not wait for it.
const (
	maxPending        = 64 << 10 // behind that, the gateway waits; only many guests that lie come so far
	maxPendingSandbox = 8 << 10  // twice what an agent's table holds; what a guest reports beyond is dropped
)

// processWatch hands the events of one watch to the lanes of their sandboxes.
type processWatch struct {
	c    *Control
	room *semaphore.Weighted
	seen processSets // those told and not ended since the last synced; the receiver's alone

	mu      sync.Mutex
	pending map[sandbox.ID]map[sandbox.ProcessID]*agentv1.Process // the newest states that are not yet at work
	syncs   processSets                                           // synced, and not yet at work
}

type processSets map[sandbox.ID]map[sandbox.ProcessID]bool

func newProcessWatch(c *Control) *processWatch {
	return &processWatch{c: c, room: semaphore.NewWeighted(maxPending), seen: processSets{},
		pending: map[sandbox.ID]map[sandbox.ProcessID]*agentv1.Process{}, syncs: processSets{}}
}

func (w *processWatch) process(ctx context.Context, e *gatewayv1.WatchResponse_ProcessChanged) error {
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
	if err := w.room.Acquire(ctx, 1); err != nil {
		return err
	}
	queued := w.c.events.do(string(id), func() {
		defer w.room.Release(1)
		if _, err := w.c.recordProcess(w.c.base, id, w.take(id, process)); err != nil && w.c.base.Err() == nil {
			w.c.Logger.Error("a process state could not be recorded", "sandbox_id", id, "process_id", process, "error", err)
			w.c.gateway.reconnect(err) // all states are told again then
		}
	})
	if !queued {
		w.room.Release(1)
	}
	return nil
}

// note keeps which open sessions the agent has named. One that has ended is not open any more when synced is at work.
func (w *processWatch) note(id sandbox.ID, process sandbox.ProcessID, ended bool) {
	switch {
	case ended:
		if delete(w.seen[id], process); len(w.seen[id]) == 0 {
			delete(w.seen, id)
		}
	case w.seen[id] == nil:
		w.seen[id] = map[sandbox.ProcessID]bool{process: true}
	default:
		w.seen[id][process] = true
	}
}

// put keeps the newest state of a process and reports whether somebody has to be sent for it: not when an older one
// still waits, which it replaces.
func (w *processWatch) put(id sandbox.ID, process sandbox.ProcessID, p *agentv1.Process) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	states := w.pending[id]
	if states == nil {
		states = map[sandbox.ProcessID]*agentv1.Process{}
		w.pending[id] = states
	}
	_, waiting := states[process]
	if !waiting && len(states) >= maxPendingSandbox {
		return false
	}
	states[process] = p
	return !waiting
}

func (w *processWatch) take(id sandbox.ID, process sandbox.ProcessID) *agentv1.Process {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.pending[id][process]
	if delete(w.pending[id], process); len(w.pending[id]) == 0 {
		delete(w.pending, id)
	}
	return p
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
		if err := w.c.checkUnseen(w.c.base, id, seen); err != nil && w.c.base.Err() == nil {
			w.c.Logger.Warn("sessions could not be compared with the agent's processes", "sandbox_id", id, "error", err)
		}
	})
	return nil
}
