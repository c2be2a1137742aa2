package node

import (
	"context"
	"errors"

	"github.com/space-sandbox/space/internal/node/ledger"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/sandboxnet"
)

// newLedger compares this node's records with the host.
func newLedger(n *Node) *ledger.Ledger {
	cfg := ledger.Config{Dir: n.deps.Dir, Journal: journal{n}, Groups: n.deps.Groups, Processes: n.deps.Worker != nil, ReservedUIDs: reservedUIDs}
	seen := map[sandboxnet.Manager]bool{}
	for _, b := range n.deps.Backends {
		cfg.Processes = cfg.Processes || b.Parts.Process
		if !seen[b.Network] {
			seen[b.Network] = true
			cfg.Boxes = append(cfg.Boxes, b.Network)
		}
	}
	return ledger.New(cfg)
}

// journal is the ledger's view of the records: the state file of a machine stands for all of its objects, and its
// entry's lock keeps them as they are.
type journal struct{ n *Node }

var _ ledger.Journal = journal{}

// Snapshot implements ledger.Journal.
func (j journal) Snapshot() ledger.Snapshot {
	s := ledger.Snapshot{Owners: map[string]ledger.Machine{}}
	if len(j.n.templates) > 0 {
		s.Owners[ledger.OwnerImport] = ledger.Machine{Stage: ledger.Changing}
	}
	j.n.mu.Lock()
	defer j.n.mu.Unlock()
	for id, e := range j.n.machines {
		m := ledger.Machine{Stage: ledger.Changing}
		select {
		case e.lock <- struct{}{}:
			if e.rec != nil {
				m = j.describe(e.rec)
			}
			<-e.lock
		default: // it is being made, removed or changed
		}
		s.Owners[string(id)] = m
	}
	s.UIDs = j.n.uids.owners()
	return s
}

// describe says what a record stands for. The caller holds the entry.
func (j journal) describe(rec *record) ledger.Machine {
	m := ledger.Machine{Stage: ledger.Running, UID: rec.UID}
	switch rec.Phase {
	case phaseMaking, phaseDeleting:
		m.Stage = ledger.Changing
	case phaseExited:
		m.Stage = ledger.Kept
	default:
		if b, ok := backend(j.n.deps.Backends, rec.Driver); ok && rec.Machine != nil {
			m.Process, m.Parts, m.Box = rec.Machine.Process, b.Parts, b.Network
		}
	}
	return m
}

// Hold implements ledger.Journal.
func (j journal) Hold(owner string, fn func(ledger.Machine) error) (busy bool, err error) {
	if owner == ledger.OwnerImport {
		select {
		case j.n.templates <- struct{}{}:
			defer func() { <-j.n.templates }()
			return false, fn(ledger.Machine{})
		default:
			return true, nil
		}
	}
	id, err := sandbox.ParseID(owner)
	if err != nil {
		return false, err
	}
	e, ok := j.n.tryAcquire(id)
	if !ok {
		return true, nil
	}
	defer j.n.release(id, e)
	if e.rec == nil {
		return false, fn(ledger.Machine{})
	}
	return false, fn(j.describe(e.rec))
}

// Reap implements ledger.Journal with what removes machines too.
func (j journal) Reap(ctx context.Context, owner string, m ledger.Machine) error {
	if owner == ledger.OwnerImport {
		return j.n.sweepImports(ctx)
	}
	id, err := sandbox.ParseID(owner)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, cleanupTimeout)
	defer cancel()
	switch m.Stage {
	case ledger.None:
		if err := errors.Join(j.n.removeParts(ctx, id, ""), j.n.records.remove(id)); err != nil {
			return err
		}
		j.n.uids.freeOf(id)
		return nil
	case ledger.Kept:
		return j.n.removeCompute(ctx, id, "")
	default:
		return errors.New("the machine stands for its objects")
	}
}

// Claim implements ledger.Journal.
func (j journal) Claim(uid uint32) (release func(), ok bool) { return j.n.uids.claim(uid) }

// tryAcquire is acquire without waiting.
func (n *Node) tryAcquire(id sandbox.ID) (*entry, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.find(id)
	select {
	case e.lock <- struct{}{}:
		e.refs++
		return e, true
	default:
		return nil, false
	}
}
