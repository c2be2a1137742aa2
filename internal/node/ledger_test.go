package node

import (
	"os"
	"path/filepath"
	"testing"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"

	nodev1 "github.com/space-sandbox/space/api/proto/node/v1"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/vmm"
)

// ledger returns the drift that node sees.
func (w *world) drift(n *Node) []*nodev1.LedgerDrift {
	w.t.Helper()
	res, err := service{n: n}.GetLedger(w.t.Context(), connect.NewRequest(&nodev1.GetLedgerRequest{}))
	if err != nil {
		w.t.Fatal(err)
	}
	return res.Msg.Drift
}

func (w *world) reconcile(n *Node) []*nodev1.Repair {
	w.t.Helper()
	res, err := service{n: n}.Reconcile(w.t.Context(), connect.NewRequest(&nodev1.ReconcileRequest{}))
	if err != nil {
		w.t.Fatal(err)
	}
	return res.Msg.Repairs
}

// TestLedgerFollowsMachines: no state of a machine drifts, and reconciles in between change nothing.
func TestLedgerFollowsMachines(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.start()
	id := sandbox.NewID()
	steady := func(when string) {
		t.Helper()
		if d := w.drift(n); len(d) > 0 {
			t.Errorf("%s: %v", when, d)
		}
		if r := w.reconcile(n); len(r) > 0 {
			t.Errorf("%s: %v", when, r)
		}
	}
	steady("without machines")
	w.ensure(n, id)
	steady("with a machine")
	w.driver.host.get(id).end(vmm.Exit{Reason: sandbox.ReasonVMMExit})
	await(t, n, id, func(m *nodev1.Machine) bool { return m.GetState() == nodev1.MachineState_MACHINE_STATE_EXITED })
	w.remove(n, id)
	steady("after its removal")
	w.requireNothing()
}

// TestReconcileRemovesWhatHasNoRecord: a disk, a box, a run directory and a uid of a sandbox that node does not know.
func TestReconcileRemovesWhatHasNoRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.start()
	lost, kept := sandbox.NewID(), sandbox.NewID()
	w.ensure(n, kept)
	disk, err := w.pool.CreateDisk(t.Context(), lost, w.digest, 0)
	if err != nil {
		t.Fatal(err)
	}
	disk.Close()
	if err := os.WriteFile(filepath.Join(w.dir.Path, "net", string(lost)), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(w.dir.MachineRunDir(lost), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := n.uids.take(lost); err != nil {
		t.Fatal(err)
	}
	if d := w.drift(n); len(d) != 5 {
		t.Errorf("drift: %v", d)
	}
	for _, r := range w.reconcile(n) {
		if !r.Done || r.Drift.SandboxId != string(lost) {
			t.Errorf("%v", r)
		}
	}
	if d := w.drift(n); len(d) > 0 {
		t.Errorf("drift afterwards: %v", d)
	}
	w.remove(n, kept)
	w.requireNothing()
	if used := n.uids.owners(); len(used) > 0 {
		t.Errorf("uids: %v", used)
	}
}

// TestReconcileBesideMachines: machines are made and removed while reconciles run without a pause. None loses anything.
func TestReconcileBesideMachines(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.start()
	done := make(chan struct{})
	var work, beside errgroup.Group
	for range 4 {
		work.Go(func() error {
			for range 10 {
				id := sandbox.NewID()
				if _, err := (service{n: n}).EnsureMachine(t.Context(), w.request(id)); err != nil {
					return err
				}
				if _, err := w.pool.OpenDisk(id); err != nil {
					return err
				}
				if err := n.remove(t.Context(), id); err != nil {
					return err
				}
			}
			return nil
		})
	}
	beside.Go(func() error {
		for {
			repairs, err := n.ledger.Reconcile(t.Context(), false)
			if err != nil {
				return err
			}
			if len(repairs) > 0 {
				t.Errorf("taken for strays: %+v", repairs)
			}
			select {
			case <-done:
				return nil
			default:
			}
		}
	})
	if err := work.Wait(); err != nil {
		t.Error(err)
	}
	close(done)
	if err := beside.Wait(); err != nil {
		t.Error(err)
	}
	w.requireNothing()
}

// TestClaimedUIDsAreNotGiven: while the processes of a stray uid are ended, no machine gets it.
func TestClaimedUIDsAreNotGiven(t *testing.T) {
	t.Parallel()
	u := newUIDRange(1000, reservedUIDs+2)
	release, ok := u.claim(1000 + reservedUIDs)
	if !ok {
		t.Fatal("a free uid cannot be claimed")
	}
	if _, again := u.claim(1000 + reservedUIDs); again {
		t.Error("it is claimed twice")
	}
	if uid, err := u.take(sandbox.NewID()); err != nil || uid != 1000+reservedUIDs+1 {
		t.Errorf("got %d, %v", uid, err)
	}
	if owners := u.owners(); len(owners) != 1 {
		t.Errorf("owners: %v", owners)
	}
	release()
	if uid, err := u.take(sandbox.NewID()); err != nil || uid != 1000+reservedUIDs {
		t.Errorf("after the release: %d, %v", uid, err)
	}
	for _, uid := range []uint32{0, 999, 1000 + reservedUIDs, 1000 + reservedUIDs + 2} {
		if _, ok := u.claim(uid); ok {
			t.Errorf("%d could be claimed", uid)
		}
	}
}
