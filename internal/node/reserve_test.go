package node

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	nodev1 "github.com/space-sandbox/space/api/proto/node/v1"
	"github.com/space-sandbox/space/internal/datadir"
	"github.com/space-sandbox/space/internal/pool"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/vmm"
)

// The levels of a pool of 64 GiB: at low its machines are paused, at between they stay as they are, at room they go on.
const (
	room    = 2 << 30
	between = 1200 * mib
	low     = 1023 * mib
)

// space gives the world a pool of 64 GiB whose free space the test decides.
func (w *world) space(free uint64) *atomic.Uint64 {
	v := &atomic.Uint64{}
	v.Store(free)
	w.usage = func(context.Context) (pool.Usage, error) {
		return pool.Usage{TotalBytes: 64 << 30, FreeBytes: v.Load()}, nil
	}
	return v
}

func isHeld(m *nodev1.Machine) bool    { return m.State == paused && m.Reason == sandbox.ReasonPoolFull }
func isRunning(m *nodev1.Machine) bool { return m.State == running }

func TestMachinesAreHeldWhileThePoolIsLow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	free := w.space(room)
	n := w.start()
	one, two, users := sandbox.NewID(), sandbox.NewID(), sandbox.NewID()
	for _, id := range []sandbox.ID{one, two, users} {
		w.ensure(n, id)
	}
	w.must(pauseMachine, n, users)
	free.Store(low)
	for _, id := range []sandbox.ID{one, two} {
		await(t, n, id, isHeld)
		if !w.driver.host.get(id).isPaused() {
			t.Error("it is said to be held and runs")
		}
	}
	if _, err := (service{n: n}).EnsureMachine(t.Context(), w.request(sandbox.NewID())); sandbox.CodeOf(err) != sandbox.CodePoolFull {
		t.Errorf("another machine: %v", err)
	}
	if warnings := n.warnings(); len(warnings) == 0 {
		t.Error("no warning")
	}
	// One that a user has paused is the user's, also when it was held; to resume it is remembered.
	if m := w.must(pauseMachine, n, two); m.State != paused || m.Reason != "" {
		t.Errorf("a user's pause of a held machine: %v", m)
	}
	if _, err := resumeMachine(t.Context(), n, users); sandbox.CodeOf(err) != sandbox.CodePoolFull {
		t.Errorf("resume: %v", err)
	}
	await(t, n, users, isHeld)
	w.remove(n, one)

	free.Store(between)
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n = w.start() // another node keeps to it
	await(t, n, users, isHeld)
	await(t, n, two, func(m *nodev1.Machine) bool { return m.State == paused && m.Reason == "" })
	free.Store(room)
	await(t, n, users, isRunning)
	if !w.driver.host.get(two).isPaused() || w.driver.host.get(users).isPaused() {
		t.Error("the wrong machine goes on")
	}
	if m := w.must(resumeMachine, n, two); m.State != running {
		t.Errorf("%v", m)
	}
	for _, id := range []sandbox.ID{two, users} {
		w.remove(n, id)
	}
	w.requireNothing()
}

// A node that comes back to a full pool pauses what runs, and one that comes back to room lets go on what the one before
// has held.
func TestHoldsOverRestarts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	free := w.space(room)
	id := sandbox.NewID()
	n := w.start()
	w.ensure(n, id)
	for _, tc := range []struct {
		free  uint64
		await func(*nodev1.Machine) bool
	}{{low, isHeld}, {between, isHeld}, {room, isRunning}, {between, isRunning}, {low, isHeld}} {
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
		free.Store(tc.free)
		n = w.start()
		await(t, n, id, tc.await)
	}
	w.remove(n, id)
	w.requireNothing()
}

// A write that failed for lack of space holds the machine, whatever the pool says of its space, and it is tried again.
func TestStalledMachineIsHeld(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.space(room)
	n := w.start()
	n.reserve.patience = 100 * time.Millisecond
	id := sandbox.NewID()
	w.ensure(n, id)
	vm := w.driver.host.get(id)
	goOn := make(chan struct{})
	vm.mu.Lock()
	vm.obey = func(ctx context.Context, pause bool) error {
		if !pause {
			select {
			case <-goOn:
			case <-ctx.Done():
			}
		}
		return ctx.Err()
	}
	vm.mu.Unlock()
	for range 2 {
		vm.stalls <- struct{}{}
		await(t, n, id, isHeld)
		goOn <- struct{}{}
		await(t, n, id, isRunning)
		if vm.isPaused() {
			t.Error("it is said to run and stands still")
		}
	}
	w.remove(n, id)
	w.requireNothing()
}

// A machine that does not obey is tried until it does; node serves the others.
func TestHoldOfAMachineThatDoesNotObey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	free := w.space(room)
	n := w.start()
	deaf, other := sandbox.NewID(), sandbox.NewID()
	w.ensure(n, deaf)
	w.ensure(n, other)
	tries := make(chan struct{}, 64)
	vm := w.driver.host.get(deaf)
	vm.mu.Lock()
	vm.obey = func(context.Context, bool) error {
		tries <- struct{}{}
		return &sandbox.Error{Code: sandbox.CodeVMMFailed, Message: "no"}
	}
	vm.mu.Unlock()
	free.Store(low)
	await(t, n, other, isHeld)
	<-tries
	<-tries
	await(t, n, deaf, isRunning) // the truth
	vm.mu.Lock()
	vm.obey = nil
	vm.mu.Unlock()
	await(t, n, deaf, isHeld)
	w.remove(n, deaf)
	w.remove(n, other)
	w.requireNothing()
}

func TestEndOfAHeldMachine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	free := w.space(room)
	n := w.start()
	id := sandbox.NewID()
	w.ensure(n, id)
	free.Store(low)
	await(t, n, id, isHeld)
	w.driver.host.get(id).end(vmm.Exit{Reason: sandbox.ReasonVMMExit})
	if m := await(t, n, id, func(m *nodev1.Machine) bool { return m.State == exited }); m.Reason != sandbox.ReasonVMMExit {
		t.Errorf("%v", m)
	}
	// On a full pool no machine is made on its disk either, and the disk stays.
	if _, err := (service{n: n}).EnsureMachine(t.Context(), w.again(id, 2)); sandbox.CodeOf(err) != sandbox.CodePoolFull {
		t.Errorf("recover: %v", err)
	}
	if ids, err := w.pool.ListSandboxes(); err != nil || len(ids) != 1 {
		t.Errorf("disks %v, %v", ids, err)
	}
	w.remove(n, id)
	w.requireNothing()
}

func TestReserveOfAPool(t *testing.T) {
	t.Parallel()
	r := reserve{}
	for total, want := range map[uint64]uint64{300 * mib: 300 * mib / 8, 8 << 30: 1 << 30, 64 << 30: 1 << 30, 1 << 40: 1 << 30} {
		if got := r.bytes(total); got != want {
			t.Errorf("a pool of %d MiB keeps %d MiB", total/mib, got/mib)
		}
	}
	r.fixed = 5 * mib
	if got := r.bytes(1 << 40); got != 5*mib {
		t.Errorf("the operator's choice gave %d", got)
	}
}

// No writer at the speed that is assumed, or at twice the one it had, gets through the reserve between two looks.
func TestLooksAreOftenEnough(t *testing.T) {
	t.Parallel()
	const pauseTime = 100 * time.Millisecond
	for name, speed := range map[string]float64{"at rest": 0, "1 GiB/s": 1 << 30, "assumed": assumedSpeed, "4 GiB/s": 4 << 30} {
		r := reserve{at: time.Now(), speed: speed}
		free := float64(8 << 30)
		fastest := max(assumedSpeed, speed)
		for {
			r.last = pool.Usage{TotalBytes: 64 << 30, FreeBytes: uint64(free)}
			if r.last.FreeBytes < r.bytes(r.last.TotalBytes) {
				break
			}
			look := r.pause()
			if look > maxLook || look < minLook {
				t.Fatalf("%s: looks after %s", name, look)
			}
			free -= fastest * look.Seconds()
		}
		if free -= fastest * pauseTime.Seconds(); free <= 0 {
			t.Errorf("%s: nothing of the reserve is left: %.0f MiB", name, free/mib)
		}
	}
}

// On a real pool, by its real space: what fills it is no guest, for the pool does not ask who writes.
func TestReserveOfARealPool(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := &datadir.Dir{Path: t.TempDir(), Installation: w.dir.Installation, RunRoot: w.dir.RunRoot}
	dir.Installation.PoolKind = string(pool.KindLoopXFS)
	if err := os.Mkdir(dir.PoolDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := pool.MakeImage(t.Context(), dir.PoolImage(), pool.MinImageBytes, true); err != nil {
		t.Fatal(err)
	}
	if err := pool.Ensure(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pool.Unmount(context.WithoutCancel(t.Context()), dir); err != nil {
			t.Error(err)
		}
	})
	p, err := pool.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	w.dir, w.pool, w.digest = dir, p, installTemplate(t, p)
	n := w.start()
	id := sandbox.NewID()
	w.ensure(n, id)
	usage, err := p.Usage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	large := filepath.Join(dir.PoolDir(), "large")
	f, err := os.Create(large)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size := int64(usage.FreeBytes - usage.TotalBytes/reserveShare + mib)
	if err := unix.Fallocate(int(f.Fd()), 0, 0, size); err != nil {
		t.Fatal(err)
	}
	await(t, n, id, isHeld)
	if err := f.Truncate(0); err != nil {
		t.Fatal(err)
	}
	await(t, n, id, isRunning)
	w.remove(n, id)
	w.requireNothing()
}
