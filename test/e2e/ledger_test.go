//go:build realvm

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	apiv1 "github.com/space-sandbox/space/api/v1"
)

// counts returns what the ledger counts, which must have no drift.
func (i *installation) counts() map[string]apiv1.LedgerKind {
	i.t.Helper()
	l, err := i.client.Ledger(i.t.Context())
	if err != nil {
		i.t.Fatal(err)
	}
	if l.Drift != 0 {
		i.t.Errorf("the ledger drifts: %+v", l.Objects)
	}
	for kind, n := range l.Kinds {
		if n.Live != n.Expected {
			i.t.Errorf("%s: %d live, %d expected", kind, n.Live, n.Expected)
		}
	}
	return l.Kinds
}

func both(n int) apiv1.LedgerKind { return apiv1.LedgerKind{Live: n, Expected: n} }

// withoutMachines is what the ledger counts while no sandbox exists: the pool, the sockets of the parts, the directory
// of run directories, two ports.
func withoutMachines() map[string]apiv1.LedgerKind {
	return map[string]apiv1.LedgerKind{"process": both(0), "uid": both(0), "tap": both(0), "namespace": both(0), "nft_table": both(0),
		"cgroup": both(0), "mount": both(1), "loop": both(1), "socket": both(3), "file": both(1), "port": both(2)}
}

// noMachines fails unless the ledger agrees that nothing of a sandbox is left.
func (i *installation) noMachines() {
	i.t.Helper()
	if d := cmp.Diff(withoutMachines(), i.counts()); d != "" {
		i.t.Errorf("the ledger without sandboxes (-want +got):\n%s", d)
	}
}

// TestLedgerCountsAMachine: each state of a sandbox has exactly its objects, over the deaths of parts and of the VMM.
func TestLedgerCountsAMachine(t *testing.T) {
	t.Parallel()
	i := install(t)
	i.start()
	i.noMachines()
	box := i.create(apiv1.CreateSandbox{})
	running := withoutMachines()
	for kind, n := range map[string]int{"process": 1, "uid": 1, "tap": 1, "namespace": 1, "nft_table": 2, "cgroup": 1, "mount": 2, "socket": 4,
		"file": 5} { // record, two directories, disk and the directory of run directories
		running[kind] = both(n)
	}
	if d := cmp.Diff(running, i.counts()); d != "" {
		t.Errorf("with a running sandbox (-want +got):\n%s", d)
	}
	i.pause(box.ID) // it stands still with all that it has, also after the death of node
	if d := cmp.Diff(running, i.counts()); d != "" {
		t.Errorf("with a paused sandbox (-want +got):\n%s", d)
	}
	i.killPart("node")
	i.eventually(time.Minute, "node answers again", func() bool { _, err := i.client.Ledger(t.Context()); return err == nil })
	if d := cmp.Diff(running, i.counts()); d != "" {
		t.Errorf("after the death of node (-want +got):\n%s", d)
	}
	if err := syscall.Kill(i.vmmPID(box.ID), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	i.eventually(time.Minute, "the sandbox has failed", func() bool {
		got, err := i.client.Sandbox(t.Context(), box.ID)
		return err == nil && got.State == "failed"
	})
	kept := withoutMachines()
	kept["uid"], kept["file"] = both(1), both(4) // its record and disk
	i.eventually(time.Minute, "the machine's objects are gone", func() bool {
		l, err := i.client.Ledger(t.Context())
		return err == nil && l.Drift == 0 && cmp.Equal(kept, l.Kinds)
	})
	i.delete(box.ID)
	i.noMachines()
}

// TestReconcile makes objects of each kind by hand, of this installation and of others. Those of this one are drift; a
// dry run names them and changes nothing; a reconcile removes them, and neither what it must not remove, nor what
// belongs to others, nor anything of a sandbox that runs.
func TestReconcile(t *testing.T) {
	t.Parallel()
	i := install(t)
	i.start()
	box := i.create(apiv1.CreateSandbox{})
	before := i.counts()
	s := newStrays(i, box.ID)
	l, err := i.client.Ledger(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(s.names(append(s.ours, s.odd...)), driftNames(l.Objects)); d != "" || l.Drift != len(s.ours)+len(s.odd) {
		t.Errorf("drift %d (-want +got):\n%s", l.Drift, d)
	}
	dry, err := i.client.Reconcile(t.Context(), apiv1.ReconcileNode{DryRun: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range dry.Repairs {
		if want := s.action(r); r.Action != want || r.Done || (r.Action == "report") != (r.Reason != "") {
			t.Errorf("dry run: %+v, want %s", r, want)
		}
	}
	s.check(append(append(s.ours, s.odd...), s.foreign...), true, "after a dry run")
	done, err := i.client.Reconcile(t.Context(), apiv1.ReconcileNode{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range done.Repairs {
		if r.Done != (r.Action == "remove") {
			t.Errorf("reconcile: %+v", r)
		}
	}
	s.check(s.ours, false, "after a reconcile")
	s.check(append(s.odd, s.foreign...), true, "after a reconcile")
	if got := i.sh(box.ID, "echo alive"); got != "alive\n" {
		t.Errorf("the sandbox says %q", got)
	}
	s.removeOdd()
	if d := cmp.Diff(before, i.counts()); d != "" {
		t.Errorf("in the end (-before +after):\n%s", d)
	}
}

// TestStartRemovesStrays: a start of node does what a reconcile does.
func TestStartRemovesStrays(t *testing.T) {
	t.Parallel()
	i := install(t)
	i.start()
	box := i.create(apiv1.CreateSandbox{})
	s := newStrays(i, box.ID)
	i.killPart("node")
	i.eventually(time.Minute, "node answers again", func() bool { _, err := i.client.Ledger(t.Context()); return err == nil })
	s.check(s.ours, false, "after a start of node")
	s.check(append(s.odd, s.foreign...), true, "after a start of node")
	s.removeOdd()
	i.counts()
	if got := i.sh(box.ID, "echo alive"); got != "alive\n" {
		t.Errorf("the sandbox says %q", got)
	}
}

// TestReconcileWhileMachinesComeAndGo: what is being made or removed at that moment is not taken for a stray.
func TestReconcileWhileMachinesComeAndGo(t *testing.T) {
	t.Parallel()
	i := install(t)
	i.start()
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
			done, err := i.client.Reconcile(t.Context(), apiv1.ReconcileNode{})
			if err == nil && len(done.Repairs) > 0 {
				err = fmt.Errorf("reconcile %d took for strays: %+v", n, done.Repairs)
			}
			if err != nil {
				ended <- err
				return
			}
		}
	}()
	for range 4 {
		box := i.create(apiv1.CreateSandbox{})
		if got := i.sh(box.ID, "echo alive"); got != "alive\n" {
			t.Errorf("the sandbox says %q", got)
		}
		i.delete(box.ID)
	}
	close(stop)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	i.noMachines()
}

func driftNames(all []apiv1.LedgerObject) []string {
	var names []string
	for _, o := range all {
		names = append(names, fmt.Sprintf("%s %s live=%v", o.Kind, o.Name, o.Live))
	}
	slices.Sort(names)
	return names
}

// exists reports whether there is a file of that name.
func exists(path string) func() bool {
	return func() bool {
		_, err := os.Lstat(path)
		return err == nil
	}
}

// mounted reports whether something is mounted there.
func mounted(path string) func() bool {
	return func() bool {
		var at, above syscall.Stat_t
		return syscall.Stat(path, &at) == nil && syscall.Stat(filepath.Dir(path), &above) == nil && at.Dev != above.Dev
	}
}
