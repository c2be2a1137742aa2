package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/space-sandbox/space/internal/confine"
	"github.com/space-sandbox/space/internal/failpoint"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/vmm"
)

// remove deletes everything of a sandbox; see DeleteMachine in the protocol. It may be called again after an error.
func (n *Node) remove(ctx context.Context, id sandbox.ID) error {
	e, err := n.acquireToDelete(ctx, id)
	if err != nil {
		return err
	}
	defer n.release(id, e)
	if e.rec == nil {
		return nil
	}
	if err := n.dismantle(ctx, e); err != nil {
		n.removeLater(id, e)
		return err
	}
	return nil
}

// Pauses between attempts to remove what could not be removed.
const (
	firstRemovePause = time.Second
	maxRemovePause   = time.Minute
)

// removeLater goes on with a removal that has failed until it is done, whether or not somebody asks for it again. It is
// called by the holder of the entry.
func (n *Node) removeLater(id sandbox.ID, e *entry) {
	if e.removing {
		return
	}
	e.removing = true
	n.background(func() {
		for pause := firstRemovePause; ; pause = min(2*pause, maxRemovePause) {
			select {
			case <-n.life.Done():
				return
			case <-time.After(pause):
			}
			if n.removeAgain(id, e) {
				return
			}
		}
	})
}

// removeAgain reports whether there is nothing left of a removal that has failed.
func (n *Node) removeAgain(id sandbox.ID, e *entry) (done bool) {
	held, err := n.acquire(n.life, id)
	if err != nil {
		return true // node is closing
	}
	defer n.release(id, held)
	if held != e {
		return true // all is gone, and something new is there
	}
	if e.rec == nil { // somebody else has done it
		e.removing = false
		return true
	}
	ctx, cancel := context.WithTimeout(n.life, cleanupTimeout)
	defer cancel()
	switch e.rec.Phase {
	case phaseDeleting:
		err = n.dismantle(ctx, e)
	case phaseMaking:
		err = n.abandon(ctx, e)
	}
	if err != nil {
		n.deps.Logger.Error("what is left of a machine cannot be removed; trying again", "sandbox_id", id, "phase", e.rec.Phase, "error", err)
		return false
	}
	e.removing = false
	return true
}

// end kills a machine whose guest is of no use, and keeps its disk; see DeleteMachine in the protocol.
func (n *Node) end(ctx context.Context, id sandbox.ID, generation int64) error {
	e, err := n.acquireToDelete(ctx, id)
	if err != nil {
		return err
	}
	defer n.release(id, e)
	if e.rec == nil || e.rec.Phase != phaseRunning || e.rec.Generation != generation {
		return nil
	}
	return n.endKept(ctx, e, vmm.Exit{Reason: sandbox.ReasonGuestNotReady, Detail: "its guest had not answered when the recovery was given up"})
}

// endKept kills a machine that is not wanted any more, and keeps its disk. The caller holds the entry.
func (n *Node) endKept(ctx context.Context, e *entry, why vmm.Exit) error {
	if err := e.machine.Kill(ctx); err != nil {
		return fmt.Errorf("end the machine of %s: %w", e.rec.ID, err)
	}
	return n.recordExit(ctx, e, why)
}

// acquireToDelete is acquire, but a pause or resume of the machine that is under way, or comes first, ends early.
func (n *Node) acquireToDelete(ctx context.Context, id sandbox.ID) (*entry, error) {
	e := n.entryOf(id)
	defer n.drop(id, e)
	e.addDeletes(1)
	defer e.addDeletes(-1)
	return n.acquire(ctx, id)
}

func (e *entry) addDeletes(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.deletes += n; e.deletes > 0 && e.act != nil {
		e.act()
	}
}

// dismantle removes all parts of e.rec, then the record: VMM, network, control group, files. A failing part does not
// keep the others; the record stays until all are gone. The caller holds the entry.
func (n *Node) dismantle(ctx context.Context, e *entry) error {
	rec := e.rec
	e.setAgent(nil)
	rec.Phase = phaseDeleting
	saveErr := n.records.save(rec) // on a full disk the removal goes on: it is what makes room
	failpoint.Hit(failpoint.RecordDeleting)
	if e.machine != nil {
		if err := e.machine.Kill(ctx); err != nil {
			return fmt.Errorf("end the machine of %s: %w", rec.ID, errors.Join(err, saveErr))
		}
	}
	letGo := e.letGo()
	failpoint.Hit(failpoint.MachineKilled)
	if err := errors.Join(letGo, n.removeParts(ctx, rec.ID, rec.Driver)); err != nil {
		return fmt.Errorf("remove the machine of %s: %w", rec.ID, errors.Join(err, saveErr))
	}
	if err := n.records.remove(rec.ID); err != nil {
		return err
	}
	failpoint.Hit(failpoint.RecordRemoved)
	n.uids.free(rec.UID)
	e.rec = nil
	n.hub.set(rec.ID, nil)
	return nil
}

// removeCompute removes what only a running machine needs: network, control group and run directory. Driver "" means
// whatever any of them may have made.
func (n *Node) removeCompute(ctx context.Context, id sandbox.ID, driver string) error {
	var errs []error
	for _, b := range n.deps.Backends {
		if driver == "" || b.Driver.Name() == driver {
			errs = append(errs, b.Network.Delete(ctx, id))
		}
	}
	failpoint.Hit(failpoint.NetworkRemoved)
	if n.deps.Groups != nil {
		errs = append(errs, removeGroup(ctx, n.deps.Groups, groupName(id)))
	}
	failpoint.Hit(failpoint.GroupRemoved)
	for _, b := range n.deps.Backends {
		if s, ok := b.Driver.(vmm.Sweeper); ok && (driver == "" || b.Driver.Name() == driver) {
			errs = append(errs, s.Sweep(ctx, id))
		}
	}
	errs = append(errs, os.RemoveAll(n.deps.Dir.MachineRunDir(id)))
	failpoint.Hit(failpoint.DirectoryRemoved)
	return errors.Join(errs...)
}

// removeGroup ends what is left in a control group and removes it; one that does not exist is fine.
func removeGroup(ctx context.Context, groups *confine.Groups, name string) error {
	g, err := groups.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return g.Remove(ctx)
}

// removeParts removes what carries the sandbox's id, whether or not it exists.
func (n *Node) removeParts(ctx context.Context, id sandbox.ID, driver string) error {
	err := errors.Join(n.removeCompute(ctx, id, driver), n.deps.Pool.RemoveSandbox(id))
	failpoint.Hit(failpoint.DiskRemoved)
	return err
}

// RemoveAll deletes every machine of the installation, and what no record names. It goes on after a failure.
func (n *Node) RemoveAll(ctx context.Context) error {
	n.mu.Lock()
	ids := slices.Collect(maps.Keys(n.machines))
	n.mu.Unlock()
	var errs []error
	for _, id := range ids {
		errs = append(errs, n.remove(ctx, id))
	}
	return errors.Join(errs...)
}
