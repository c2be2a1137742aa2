package node

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/space-sandbox/space/internal/pool"
	"github.com/space-sandbox/space/internal/sandbox"
)

// The reserve is what stays free of the pool: below it node pauses every machine before a write of one can fail. It has to
// hold what can be written between two looks and until all vCPUs stand still:
//
//	reserve > speed · (minLook + time to pause)
//
// With assumedSpeed, 50 ms and 100 ms that is 300 MiB; maxReserve is three times that. A pool below 8 GiB has a smaller
// one, and is told on slower disks in practice. Whatever is written faster is stopped by the VMM itself at the first
// write that fails, without loss, and held by node like the others (see vmm.Machine.Stalled).
const (
	maxReserve    = 1 << 30
	reserveShare  = 8       // a small pool keeps an eighth
	assumedSpeed  = 2 << 30 // bytes in a second
	minLook       = 50 * time.Millisecond
	maxLook       = time.Second
	lookWhileLow  = 250 * time.Millisecond
	speedMemory   = 2 // a speed that is not reached again counts for half at the next look
	stallPatience = 5 * time.Second
)

// reserve watches the pool's space. Safe for concurrent use.
type reserve struct {
	usage func(context.Context) (pool.Usage, error)
	fixed uint64 // what the operator has chosen; 0: by the pool's size
	// patience is how long a machine stays still after the host had no space for its disk, though there seems to be room.
	patience time.Duration

	mu    sync.Mutex
	low   bool
	last  pool.Usage
	at    time.Time // of last; zero: never looked
	speed float64   // bytes in a second that were written of late
}

// bytes is what stays free of a pool of that size.
func (r *reserve) bytes(total uint64) uint64 {
	if r.fixed > 0 {
		return r.fixed
	}
	return min(maxReserve, total/reserveShare)
}

// enough is the free space at which machines go on: half a reserve more, so that they are not paused again at once.
func enough(reserve uint64) uint64 { return reserve + reserve/2 }

// look reads the space and says whether it is low, and whether that has changed.
func (r *reserve) look(ctx context.Context) (low, changed bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	u, err := r.usage(ctx)
	if err != nil {
		return r.low, false, fmt.Errorf("pool usage: %w", err)
	}
	now := time.Now()
	if took := now.Sub(r.at).Seconds(); !r.at.IsZero() && took > 0 {
		written := float64(r.last.FreeBytes) - float64(u.FreeBytes)
		r.speed = max(written/took, r.speed/speedMemory)
	}
	r.last, r.at = u, now
	was, keep := r.low, r.bytes(u.TotalBytes)
	switch {
	case u.FreeBytes < keep:
		r.low = true
	case u.FreeBytes >= enough(keep):
		r.low = false
	}
	return r.low, r.low != was, nil
}

// isLow is what the last look has seen.
func (r *reserve) isLow() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.low
}

// stayLow goes on with what an earlier node has decided: until there is enough space the pool counts as low.
func (r *reserve) stayLow() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.low = r.low || r.last.FreeBytes < enough(r.bytes(r.last.TotalBytes))
}

// pause is how long nobody needs to look: the reserve cannot be reached before, at twice the speed of late.
func (r *reserve) pause() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	keep := r.bytes(r.last.TotalBytes)
	switch {
	case r.low:
		return lookWhileLow
	case r.last.FreeBytes <= keep:
		return minLook
	}
	seconds := float64(r.last.FreeBytes-keep) / max(assumedSpeed, 2*r.speed)
	return min(max(time.Duration(seconds*float64(time.Second)), minLook), maxLook)
}

// full is the error for what has to wait until there is room.
func (r *reserve) full(message string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	keep := r.bytes(r.last.TotalBytes)
	return &sandbox.Error{Code: sandbox.CodePoolFull, Message: message,
		Cause:  fmt.Sprintf("%d MiB of the pool are free; %d are kept in reserve, and work goes on at %d", r.last.FreeBytes/mib, keep/mib, enough(keep)/mib),
		Remedy: "delete sandboxes or templates, or give the pool more space"}
}

// watchPool looks at the pool until node is closed, and makes the machines stand still or go on.
func (n *Node) watchPool() {
	broken := false
	for {
		low, changed, err := n.reserve.look(n.life)
		if failed := err != nil && n.life.Err() == nil; failed != broken {
			if broken = failed; failed {
				n.deps.Logger.Error("the space of the pool is not known; nothing is paused or resumed for it", "error", err)
			}
		}
		if changed {
			n.tellSpace(low)
			n.settleEach()
		}
		select {
		case <-n.life.Done():
			return
		case <-time.After(n.reserve.pause()):
		}
	}
}

func (n *Node) tellSpace(low bool) {
	r := n.reserve
	r.mu.Lock()
	free, keep := r.last.FreeBytes/mib, r.bytes(r.last.TotalBytes)/mib
	r.mu.Unlock()
	if low {
		n.deps.Logger.Error("the pool is nearly full: machines are paused until there is room", "free_mib", free, "reserve_mib", keep)
		return
	}
	n.deps.Logger.Info("the pool has room again: machines go on", "free_mib", free, "reserve_mib", keep)
}

// settleEach has every machine looked at.
func (n *Node) settleEach() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for id, e := range n.machines {
		n.settle(id, e)
	}
}

// hold decides whether node itself keeps the machine of e from running, and writes it down. A record that cannot be
// written does not hinder it: the next node would decide the same. It reports whether that has to be looked at again
// without anybody asking. The caller holds the entry.
func (n *Node) hold(e *entry) (again bool) {
	rec, held := e.rec, ""
	waiting := time.Since(e.stalled) < n.reserve.patience
	if !rec.Paused && (n.reserve.isLow() || waiting) {
		held = sandbox.ReasonPoolFull
	}
	if rec.Held == held {
		return held != "" && waiting
	}
	rec.Held = held
	if held != "" {
		n.metrics.holds.Inc()
	}
	n.deps.Logger.Info("what keeps a machine from running has changed", "sandbox_id", rec.ID, "reason", held)
	if err := n.records.save(rec); err != nil {
		n.deps.Logger.Error("cannot write down why a machine stands still", "sandbox_id", rec.ID, "error", err)
	}
	return held != "" && waiting
}

// stall notes that the VMM has stopped the machine because the host had no space for its disk.
func (n *Node) stall(id sandbox.ID, rec *record) {
	e, err := n.acquire(n.life, id)
	if err != nil {
		return // node is closing
	}
	defer n.release(id, e)
	if e.rec != rec || rec.Phase != phaseRunning {
		return
	}
	n.deps.Logger.Error("the host has no space for the disk of a machine: it stands still, nothing of it is lost", "sandbox_id", id)
	e.stalled = time.Now()
	// The VMM is told too, or it would try by itself.
	e.vcpus = vcpus{still: true}
	n.hold(e)
	n.hub.set(id, toProto(rec, e.vcpus))
	n.settle(id, e)
}
