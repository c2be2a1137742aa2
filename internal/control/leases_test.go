package control_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store/memory"
)

// twoClocks are a wall clock and one that does not jump.
type twoClocks struct {
	mu   sync.Mutex
	wall time.Time
	mono time.Duration
}

func newTwoClocks() *twoClocks {
	return &twoClocks{wall: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
}

func (c *twoClocks) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wall
}

func (c *twoClocks) elapsed() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mono
}

// pass lets time pass.
func (c *twoClocks) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall, c.mono = c.wall.Add(d), c.mono+d
}

// jump sets the wall clock forward or back.
func (c *twoClocks) jump(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall = c.wall.Add(d)
}

// newWorldWith is a world with clocks that the test moves.
func newWorldWith(t *testing.T, clock *twoClocks) *world {
	t.Helper()
	return newWorldAt(t, memory.New(), clock)
}

func lease(ttl time.Duration, expiry sandbox.Expiry) *sandbox.Lease {
	return &sandbox.Lease{TTL: ttl, OnExpiry: expiry}
}

// pass lets time pass and has leases looked at.
func (w *world) pass(d time.Duration) {
	w.clock.pass(d)
	w.c.LookAtLeases()
}

// looked waits until the sweep has looked at leases: it ends one that is there for that.
func (w *world) looked() {
	w.t.Helper()
	probe := w.running(sandbox.Spec{Lease: lease(time.Second, sandbox.ExpireDelete)})
	w.pass(time.Second)
	w.gone(probe.ID)
}

// gone waits until a sandbox has been deleted.
func (w *world) gone(id sandbox.ID) {
	w.t.Helper()
	w.eventually("the sandbox is deleted", func() bool {
		w.c.LookAtLeases()
		_, err := w.c.GetSandbox(w.t.Context(), string(id))
		return sandbox.CodeOf(err) == sandbox.CodeNotFound
	})
}

func (w *world) patch(id sandbox.ID, p control.LeasePatch) sandbox.Sandbox {
	w.t.Helper()
	box, err := w.c.PatchSandbox(w.t.Context(), string(id), control.SandboxPatch{Lease: &p})
	if err != nil {
		w.t.Fatal(err)
	}
	return box
}

func TestLeaseDeletes(t *testing.T) {
	t.Parallel()
	w := newWorldWith(t, newTwoClocks())
	g := newGate()
	w.node.setHook(g.at("EnsureMachine"))
	acc := w.accept(sandbox.Spec{Lease: lease(time.Hour, sandbox.ExpireDelete)})
	<-g.reached
	if l := acc.Sandbox.Lease; l == nil || *l != (sandbox.Lease{TTL: time.Hour, OnExpiry: sandbox.ExpireDelete, Remaining: time.Hour}) {
		t.Errorf("while it is created: %+v", l)
	}
	w.pass(2 * time.Hour) // does not count
	close(g.open)
	if op := w.ended(acc.Operation.ID); op.State != operation.Succeeded {
		t.Fatal(op.Error)
	}
	w.node.setHook(nil)
	box := w.box(acc.Sandbox.ID)
	if l := box.Lease; !l.ExpiresAt.Equal(w.clock.now().Add(time.Hour)) || l.Remaining != 0 {
		t.Errorf("when it runs: %+v", l)
	}
	w.pass(59 * time.Minute)
	w.looked()
	w.box(box.ID)
	last := w.end()
	w.pass(time.Minute)
	w.gone(box.ID)
	list := w.log(last, control.EventFilter{SandboxID: box.ID})
	if got, want := story(list), []string{"lease expired", "sandbox deleting", "operation delete queued", "operation delete running", "sandbox deleted", "operation delete succeeded"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, e := range list {
		if e.OperationID == "" || e.OperationID != list[0].OperationID {
			t.Errorf("%s of operation %q", e.Type, e.OperationID)
		}
	}
	w.nothingLeft()
}

func TestLeaseIsPatched(t *testing.T) {
	t.Parallel()
	w := newWorldWith(t, newTwoClocks())
	box := w.running(sandbox.Spec{Lease: lease(time.Hour, sandbox.ExpireDelete)})
	last, start := w.end(), w.clock.now()
	expires := func(box sandbox.Sandbox, want time.Duration) {
		t.Helper()
		if box.Lease == nil || !box.Lease.ExpiresAt.Equal(start.Add(want)) {
			t.Errorf("the lease is %+v, want it to end after %s", box.Lease, want)
		}
	}
	expires(w.patch(box.ID, control.LeasePatch{TTL: 30 * time.Minute, Extend: true}), 90*time.Minute)
	w.clock.pass(10 * time.Minute)
	expires(w.patch(box.ID, control.LeasePatch{TTL: 30 * time.Minute}), 40*time.Minute)
	w.pass(29 * time.Minute)
	w.looked()
	expires(w.box(box.ID), 40*time.Minute)
	if got := w.patch(box.ID, control.LeasePatch{Remove: true}); got.Lease != nil {
		t.Errorf("removed: %+v", got.Lease)
	}
	w.pass(time.Hour)
	w.looked()
	w.box(box.ID)
	if got := w.patch(box.ID, control.LeasePatch{TTL: time.Minute, Extend: true}); got.Lease.Left(w.clock.now()) != time.Minute {
		t.Errorf("a new one: %+v", got.Lease)
	}
	if got, want := story(w.log(last, control.EventFilter{SandboxID: box.ID, Types: []control.EventType{control.EventLease}})),
		[]string{"lease set", "lease set", "lease removed", "lease set"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, bad := range []control.LeasePatch{{}, {TTL: time.Millisecond}, {TTL: sandbox.MaxLease + 1}, {TTL: sandbox.MaxLease, Extend: true}, {TTL: time.Hour, OnExpiry: "suspend"}} {
		_, err := w.c.PatchSandbox(t.Context(), string(box.ID), control.SandboxPatch{Lease: &bad})
		wantCode(t, err, sandbox.CodeInvalidArgument)
	}
	w.pass(time.Minute)
	w.gone(box.ID)
}

// TestExtendedLeaseIsKept: an extension that comes between the look and the act wins.
func TestExtendedLeaseIsKept(t *testing.T) {
	t.Parallel()
	w := newWorldWith(t, newTwoClocks())
	box := w.running(sandbox.Spec{Lease: lease(time.Hour, sandbox.ExpireDelete)})
	w.clock.pass(59 * time.Minute)
	w.patch(box.ID, control.LeasePatch{TTL: time.Hour, Extend: true})
	w.clock.pass(2 * time.Minute)
	if err := w.c.ExpireLease(t.Context(), box); !errors.Is(err, control.ErrNotDue()) {
		t.Errorf("got %v", err)
	}
	w.looked()
	if now := w.box(box.ID); now.State != sandbox.StateRunning || now.OperationID != "" {
		t.Errorf("%s, operation %q", now.State, now.OperationID)
	}
}

// TestLeasesSurviveRestarts: a lease goes on, and one that ended meanwhile is ended at the start.
func TestLeasesSurviveRestarts(t *testing.T) {
	t.Parallel()
	w := newWorldWith(t, newTwoClocks())
	short := w.running(sandbox.Spec{Lease: lease(time.Hour, sandbox.ExpireDelete)})
	long := w.running(sandbox.Spec{Lease: lease(3*time.Hour, sandbox.ExpireDelete)})
	w.crash()
	w.clock.pass(2 * time.Hour)
	w.startControl()
	w.gone(short.ID)
	if l := w.box(long.ID).Lease; l.Left(w.clock.now()) != time.Hour {
		t.Errorf("%+v at %s", l, w.clock.now())
	}
	w.pass(time.Hour)
	w.gone(long.ID)
}

// TestLeasesAndJumpsOfTheClock: a jump ends no lease and makes none longer, and the record follows it.
func TestLeasesAndJumpsOfTheClock(t *testing.T) {
	t.Parallel()
	for name, jump := range map[string]time.Duration{"forward": 1000 * time.Hour, "back": -1000 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorldWith(t, newTwoClocks())
			box := w.running(sandbox.Spec{Lease: lease(time.Hour, sandbox.ExpireDelete)})
			w.clock.jump(jump)
			w.clock.pass(30 * time.Minute)
			fresh := w.running(sandbox.Spec{Lease: lease(time.Hour, sandbox.ExpireDelete)}) // made before the jump was seen
			w.looked()
			for want, id := range map[time.Duration]sandbox.ID{30*time.Minute - time.Second: box.ID, time.Hour - time.Second: fresh.ID} {
				if left := w.box(id).Lease.Left(w.clock.now()); left != want {
					t.Errorf("%s are left, want %s", left, want)
				}
			}
			w.pass(30*time.Minute - 2*time.Second)
			w.looked()
			w.box(fresh.ID)
			w.gone(box.ID) // its end came with the last second
			w.pass(30 * time.Minute)
			w.gone(fresh.ID)
		})
	}
}

// TestClockSetBackWhileAway: what the clock lost while control was away, leases do not gain.
func TestClockSetBackWhileAway(t *testing.T) {
	t.Parallel()
	w := newWorldWith(t, newTwoClocks())
	box := w.running(sandbox.Spec{Lease: lease(time.Hour, sandbox.ExpireDelete)})
	w.crash()
	w.clock.jump(-1000 * time.Hour)
	w.startControl()
	if left := w.box(box.ID).Lease.Left(w.clock.now()); left != time.Hour {
		t.Errorf("%s are left", left)
	}
	w.pass(time.Hour)
	w.gone(box.ID)
}

func TestLeaseOfAFailedSandbox(t *testing.T) {
	t.Parallel()
	w := newWorldWith(t, newTwoClocks())
	box := w.running(sandbox.Spec{Lease: lease(time.Hour, sandbox.ExpireDelete)})
	w.node.exit(string(box.ID), sandbox.ReasonVMMExit, "")
	w.eventually("it has failed", func() bool { return w.box(box.ID).State == sandbox.StateFailed })
	if l := w.box(box.ID).Lease; !l.ExpiresAt.Equal(box.Lease.ExpiresAt) {
		t.Errorf("the lease is %+v, was %+v", l, box.Lease)
	}
	w.pass(time.Hour)
	w.gone(box.ID)
}
