package node

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	nodev1 "github.com/space-sandbox/space/api/proto/node/v1"
	"github.com/space-sandbox/space/internal/datadir"
	"github.com/space-sandbox/space/internal/pool"
	"github.com/space-sandbox/space/internal/sandbox"
	netfake "github.com/space-sandbox/space/internal/sandboxnet/fake"
	"github.com/space-sandbox/space/internal/vmm"
)

// world is one installation in a temporary directory with a scripted driver; nodes come and go on it.
type world struct {
	t      *testing.T
	dir    *datadir.Dir
	pool   *pool.Pool
	driver *driver
	digest string
	bootID string
	usage  func(context.Context) (pool.Usage, error) // nil: the pool's own
}

func newWorld(t *testing.T) *world {
	t.Helper()
	path := t.TempDir()
	w := &world{t: t, bootID: "boot-1", driver: &driver{host: newHost()}, dir: &datadir.Dir{Path: path,
		Installation: datadir.Installation{ID: "test00", UIDBase: 1 << 29, UIDCount: 80, PoolKind: string(pool.KindCopy)}, RunRoot: filepath.Join(path, "run")}}
	if err := os.Mkdir(w.dir.PoolDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	p, err := pool.Open(pool.Config{Dir: w.dir.PoolDir(), Kind: pool.KindCopy})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	w.pool = p
	w.digest = installTemplate(t, p)
	return w
}

// installTemplate puts a template of 1 MiB of random bytes into the pool.
func installTemplate(t *testing.T, p *pool.Pool) string {
	t.Helper()
	st, err := p.NewStage("test")
	if err != nil {
		t.Fatal(err)
	}
	f, err := st.CreateRootfs()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	content := make([]byte, 1<<20)
	rand.Read(content)
	if _, err := f.Write(content); err != nil {
		t.Fatal(err)
	}
	digest, err := pool.Digest(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	m := pool.Manifest{Digest: digest, Names: []string{"tiny:latest"}, SizeBytes: 1 << 20, MinDiskMiB: sandbox.MinDiskMiB, CreatedAt: time.Now().UTC()}
	if err := p.InstallTemplate(t.Context(), st, m); err != nil {
		t.Fatal(err)
	}
	return digest
}

// start makes a node on the world; it is closed with the test, or before by the caller.
func (w *world) start() *Node {
	w.t.Helper()
	network, err := netfake.New(netfake.Config{Dir: filepath.Join(w.dir.Path, "net"), SocketPath: func(id sandbox.ID) string { return w.dir.MachineRunDir(id) + "/agent.sock" }})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { network.Close() })
	n, err := New(w.t.Context(), Deps{Dir: w.dir, Pool: w.pool, Backends: []Backend{{Driver: w.driver, Network: network}},
		DefaultDriver: w.driver.Name(), Probes: map[string]vmm.Probe{w.driver.Name(): w.driver.Probe(w.t.Context())},
		Logger: slog.New(slog.DiscardHandler), BootID: w.bootID, Usage: w.usage})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { n.cancel(); n.wg.Wait() })
	return n
}

func (w *world) request(id sandbox.ID) *connect.Request[nodev1.EnsureMachineRequest] {
	return connect.NewRequest(&nodev1.EnsureMachineRequest{SandboxId: string(id), Generation: 1, TemplateDigest: w.digest,
		Vcpus: 1, MemoryMib: 128, DiskMib: 64, AgentToken: hex.EncodeToString(make([]byte, 32))})
}

// requireNothing fails unless no part of any sandbox is left.
func (w *world) requireNothing() {
	w.t.Helper()
	if n := w.driver.host.running(); n != 0 {
		w.t.Errorf("%d machines still run", n)
	}
	for _, dir := range []string{w.dir.MachinesDir(), filepath.Join(w.dir.PoolDir(), "sandboxes"), filepath.Join(w.dir.Path, "net"), w.dir.RunDir() + "/vm"} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			w.t.Fatal(err)
		}
		for _, e := range entries {
			w.t.Errorf("left behind: %s/%s", dir, e.Name())
		}
	}
}

func (w *world) ensure(n *Node, id sandbox.ID) *nodev1.Machine {
	w.t.Helper()
	res, err := service{n: n}.EnsureMachine(w.t.Context(), w.request(id))
	if err != nil {
		w.t.Fatalf("ensure: %v", err)
	}
	return res.Msg.Machine
}

func (w *world) remove(n *Node, id sandbox.ID) {
	w.t.Helper()
	if _, err := (service{n: n}).DeleteMachine(w.t.Context(), connect.NewRequest(&nodev1.DeleteMachineRequest{SandboxId: string(id)})); err != nil {
		w.t.Fatalf("delete: %v", err)
	}
}

// await returns the first state of id for which ok holds, as a watcher sees it.
func await(t *testing.T, n *Node, id sandbox.ID, ok func(*nodev1.Machine) bool) *nodev1.Machine {
	t.Helper()
	sub := n.hub.subscribe()
	defer sub.close()
	for {
		if m, changed := sub.take()[id]; changed && ok(m) {
			return m
		}
		select {
		case <-sub.wake:
		case <-t.Context().Done():
			t.Fatal("the awaited state never came")
		}
	}
}

func TestEnsureAndDelete(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.start()
	id := sandbox.NewID()
	for range 2 { // the second is the same machine
		if m := w.ensure(n, id); m.State != nodev1.MachineState_MACHINE_STATE_RUNNING {
			t.Fatalf("state %v", m.State)
		}
	}
	if w.driver.host.boots != 1 {
		t.Errorf("%d boots, want 1", w.driver.host.boots)
	}
	other := w.request(id)
	other.Msg.Generation = 2
	if _, err := (service{n: n}).EnsureMachine(t.Context(), other); sandbox.CodeOf(err) != sandbox.CodeInvalidState {
		t.Errorf("another generation: %v", err)
	}
	w.remove(n, id)
	w.requireNothing()
	w.remove(n, id) // deleting what does not exist succeeds
	n.cancel()
	n.wg.Wait() // the watcher of the ended machine looks at its entry once more
	if len(n.machines) != 0 {
		t.Errorf("%d entries are kept for machines that do not exist", len(n.machines))
	}
}

// TestConcurrentEnsureBootsOnce: many calls for one sandbox make one machine.
func TestConcurrentEnsureBootsOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.start()
	id := sandbox.NewID()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := (service{n: n}).EnsureMachine(t.Context(), w.request(id)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if w.driver.host.boots != 1 {
		t.Errorf("%d boots, want 1", w.driver.host.boots)
	}
}

func TestFailedBootLeavesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.driver.bootErr = &sandbox.Error{Code: sandbox.CodeVMMFailed, Message: "no"}
	n := w.start()
	if _, err := (service{n: n}).EnsureMachine(t.Context(), w.request(sandbox.NewID())); sandbox.CodeOf(err) != sandbox.CodeVMMFailed {
		t.Errorf("got %v", err)
	}
	w.requireNothing()
}

// TestCanceledBootLeavesNothing: the caller goes away while the machine is being made.
func TestCanceledBootLeavesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.driver.gate = make(chan struct{})
	n := w.start()
	ctx, cancel := context.WithCancel(t.Context())
	id := sandbox.NewID()
	done := make(chan error, 1)
	go func() {
		_, err := service{n: n}.EnsureMachine(ctx, w.request(id))
		done <- err
	}()
	awaitFile(t, filepath.Join(w.dir.PoolDir(), "sandboxes", string(id), "disk.img"))
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	w.requireNothing()
}

func awaitFile(t *testing.T, path string) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat(path); err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatalf("%s never came", path)
		}
	}
}

// TestRestartAdopts: node dies and comes back; the machine is the same and can be deleted.
func TestRestartAdopts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := sandbox.NewID()
	first := w.start()
	w.ensure(first, id)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := w.start()
	await(t, second, id, func(m *nodev1.Machine) bool { return m.State == nodev1.MachineState_MACHINE_STATE_RUNNING })
	if m := w.ensure(second, id); m.State != nodev1.MachineState_MACHINE_STATE_RUNNING || w.driver.host.boots != 1 {
		t.Errorf("state %v after %d boots", m.State, w.driver.host.boots)
	}
	w.remove(second, id)
	w.requireNothing()
}

// TestExitKeepsDisk: a machine that ends by itself is reported with its reason, gives back its network, keeps its disk.
func TestExitKeepsDisk(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.start()
	id := sandbox.NewID()
	w.ensure(n, id)
	w.driver.host.get(id).end(vmm.Exit{Reason: sandbox.ReasonGuestReboot, Detail: "Kernel panic"})
	m := await(t, n, id, func(m *nodev1.Machine) bool { return m.State == nodev1.MachineState_MACHINE_STATE_EXITED })
	if m.Reason != sandbox.ReasonGuestReboot || m.Detail != "Kernel panic" {
		t.Errorf("reason %q, detail %q", m.Reason, m.Detail)
	}
	if ids, err := w.pool.ListSandboxes(); err != nil || len(ids) != 1 {
		t.Errorf("disks %v, %v; want the one of the ended machine", ids, err)
	}
	if _, err := n.AgentSocket(t.Context(), id); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("a socket to an ended machine: %v", err)
	}
	w.remove(n, id)
	w.requireNothing()
}

// TestExitsWhileAway: what happened between two nodes gets its true reason.
func TestExitsWhileAway(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		between func(*world, sandbox.ID)
		reason  string
	}{
		"vmm ended": {func(w *world, id sandbox.ID) { w.driver.host.get(id).end(vmm.Exit{}) }, sandbox.ReasonVMMExit},
		"host restarted": {func(w *world, id sandbox.ID) {
			w.driver.host.get(id).end(vmm.Exit{})
			w.bootID = "boot-2"
		}, sandbox.ReasonHostRestarted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			id := sandbox.NewID()
			first := w.start()
			w.ensure(first, id)
			if err := first.Close(); err != nil {
				t.Fatal(err)
			}
			tc.between(w, id)
			second := w.start()
			m := await(t, second, id, func(m *nodev1.Machine) bool { return m.State == nodev1.MachineState_MACHINE_STATE_EXITED })
			if m.Reason != tc.reason {
				t.Errorf("reason %q, want %q", m.Reason, tc.reason)
			}
			w.remove(second, id)
			w.requireNothing()
		})
	}
}

// TestCrashLeavesNothing: a record of a machine that was half made or half deleted is cleaned up at start, and so are
// parts without a record.
func TestCrashLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, ph := range []phase{phaseMaking, phaseDeleting} {
		t.Run(string(ph), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			id := sandbox.NewID()
			first := w.start()
			w.ensure(first, id)
			if err := first.Close(); err != nil {
				t.Fatal(err)
			}
			rec := *first.machines[id].rec
			rec.Phase = ph
			store, err := openRecords(w.dir.MachinesDir())
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(store.save(&rec), store.close()); err != nil {
				t.Fatal(err)
			}
			w.start()
			w.requireNothing()
		})
	}
	t.Run("no record", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		f, err := w.pool.CreateDisk(t.Context(), sandbox.NewID(), w.digest, 64)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		w.start()
		w.requireNothing()
	})
}

func TestRefusedRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.start()
	for name, change := range map[string]func(*nodev1.EnsureMachineRequest){
		"id":            func(r *nodev1.EnsureMachineRequest) { r.SandboxId = "../../etc" },
		"digest":        func(r *nodev1.EnsureMachineRequest) { r.TemplateDigest = "sha256:../x" },
		"no vcpus":      func(r *nodev1.EnsureMachineRequest) { r.Vcpus = 0 },
		"too many vcpu": func(r *nodev1.EnsureMachineRequest) { r.Vcpus = 10000 },
		"memory":        func(r *nodev1.EnsureMachineRequest) { r.MemoryMib = 1 },
		"disk":          func(r *nodev1.EnsureMachineRequest) { r.DiskMib = 1 },
		"token":         func(r *nodev1.EnsureMachineRequest) { r.AgentToken = "short" },
		"driver":        func(r *nodev1.EnsureMachineRequest) { r.Driver = "vmware" },
		"template": func(r *nodev1.EnsureMachineRequest) {
			r.TemplateDigest = "sha256:" + hex.EncodeToString(make([]byte, 32))
		},
	} {
		req := w.request(sandbox.NewID())
		change(req.Msg)
		_, err := service{n: n}.EnsureMachine(t.Context(), req)
		if code := sandbox.CodeOf(err); code == "" || code == sandbox.CodeInternal {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.requireNothing()
	if w.driver.host.boots != 0 {
		t.Error("a refused request booted a machine")
	}
}

func TestUIDsAreOwn(t *testing.T) {
	t.Parallel()
	u := newUIDRange(1000, reservedUIDs+2)
	a, err := u.take(sandbox.NewID())
	if err != nil {
		t.Fatal(err)
	}
	b, err := u.take(sandbox.NewID())
	if err != nil {
		t.Fatal(err)
	}
	if a == b || a < 1000+reservedUIDs {
		t.Errorf("uids %d and %d", a, b)
	}
	if _, err := u.take(sandbox.NewID()); sandbox.CodeOf(err) != sandbox.CodeCapacity {
		t.Errorf("a full range gave %v", err)
	}
	u.free(a)
	if c, err := u.take(sandbox.NewID()); err != nil || c != a {
		t.Errorf("after freeing %d: %d, %v", a, c, err)
	}
}
