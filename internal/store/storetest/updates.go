package storetest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
)

func namesAreUniqueAmongLive(t *testing.T, s store.Store) {
	ctx := t.Context()
	first, second := box("alpha"), box("beta")
	insert(t, s, first, second)
	if err := s.Update(ctx, func(tx store.Tx) error { return tx.InsertSandbox(box("alpha")) }); !errors.Is(err, store.ErrNameTaken) {
		t.Errorf("insert with a taken name: %v", err)
	}
	second.Revision, second.Name = 1, "alpha"
	rename := func(tx store.Tx) error { _, err := tx.UpdateSandbox(second); return err }
	if err := s.Update(ctx, rename); !errors.Is(err, store.ErrNameTaken) {
		t.Errorf("rename to a taken name: %v", err)
	}
	if got := must[sandbox.Sandbox](t)(s.SandboxByName(ctx, "beta")); got.ID != second.ID {
		t.Errorf("after the refused rename beta is %s", got.ID)
	}
	first.Revision, first.State = 1, sandbox.StateDeleted
	update(t, s, func(tx store.Tx) error { _, err := tx.UpdateSandbox(first); return err })
	update(t, s, rename)
	if got := must[sandbox.Sandbox](t)(s.SandboxByName(ctx, "alpha")); got.ID != second.ID {
		t.Errorf("alpha is %s, want the live one %s", got.ID, second.ID)
	}
	insert(t, s, box(""), box("")) // no name is no conflict
}

// together runs fn n times at once and returns the errors.
func together(n int, fn func(i int) error) []error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = fn(i) })
	}
	wg.Wait()
	return errs
}

func count(errs []error, want error) (n int) {
	for _, err := range errs {
		if errors.Is(err, want) {
			n++
		}
	}
	return n
}

func concurrentNames(t *testing.T, s store.Store) {
	errs := together(20, func(int) error {
		return s.Update(t.Context(), func(tx store.Tx) error { return tx.InsertSandbox(box("same")) })
	})
	if ok, taken := count(errs, nil), count(errs, store.ErrNameTaken); ok != 1 || taken != 19 {
		t.Errorf("%d succeeded and %d were refused, want 1 and 19: %v", ok, taken, errs)
	}
}

func compareAndSet(t *testing.T, s store.Store) {
	b, c := box("x"), command(sandbox.NewID())
	insert(t, s, b)
	update(t, s, func(tx store.Tx) error { return tx.InsertCommand(c) })
	b.Revision, c.Revision = 1, 1
	errs := together(10, func(i int) error {
		mine := b
		mine.Detail = strconv.Itoa(i)
		return s.Update(t.Context(), func(tx store.Tx) error { _, err := tx.UpdateSandbox(mine); return err })
	})
	if ok, conflicts := count(errs, nil), count(errs, store.ErrConflict); ok != 1 || conflicts != 9 {
		t.Errorf("sandbox: %d succeeded, %d conflicts, want 1 and 9: %v", ok, conflicts, errs)
	}
	errs = together(10, func(i int) error {
		mine := c
		mine.PID = i
		return s.Update(t.Context(), func(tx store.Tx) error { _, err := tx.UpdateCommand(mine); return err })
	})
	if ok, conflicts := count(errs, nil), count(errs, store.ErrConflict); ok != 1 || conflicts != 9 {
		t.Errorf("command: %d succeeded, %d conflicts, want 1 and 9: %v", ok, conflicts, errs)
	}
	got := boxIn(t.Context(), t, s, b.ID)
	if got.Revision != 2 {
		t.Errorf("revision %d, want 2", got.Revision)
	}
	var next sandbox.Sandbox
	update(t, s, func(tx store.Tx) (err error) { next, err = tx.UpdateSandbox(got); return err })
	if next.Revision != 3 {
		t.Errorf("UpdateSandbox returned revision %d, want 3", next.Revision)
	}
}

func endedOperationsStay(t *testing.T, s store.Store) {
	for _, end := range []operation.State{operation.Succeeded, operation.Failed, operation.Canceled} {
		o := op("create")
		update(t, s, func(tx store.Tx) error { return tx.InsertOperation(o) })
		o.State = end
		update(t, s, func(tx store.Tx) error { return tx.UpdateOperation(o) })
		o.State = operation.Running
		err := s.Update(t.Context(), func(tx store.Tx) error { return tx.UpdateOperation(o) })
		if got := must[operation.Operation](t)(s.Operation(t.Context(), o.ID)); !errors.Is(err, store.ErrConflict) || got.State != end {
			t.Errorf("after %s: %v, state %s", end, err, got.State)
		}
	}
}

func updateIsAtomic(t *testing.T, s store.Store) {
	errMine := errors.New("mine")
	b := box("atomic")
	err := s.Update(t.Context(), func(tx store.Tx) error {
		if err := errors.Join(tx.InsertSandbox(b), tx.SetMeta("m", "v")); err != nil {
			return err
		}
		return errMine
	})
	if !errors.Is(err, errMine) {
		t.Errorf("got %v, want fn's own error", err)
	}
	if _, err := s.Sandbox(t.Context(), b.ID); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the sandbox of a failed update: %v", err)
	}
	if _, err := s.Meta(t.Context(), "m"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the value of a failed update: %v", err)
	}
	// Updates that fail share no fate with others that are committed at the same moment.
	errs := together(40, func(i int) error {
		return s.Update(t.Context(), func(tx store.Tx) error {
			if err := tx.SetMeta("n"+strconv.Itoa(i), "v"); err != nil {
				return err
			}
			if i%2 == 1 {
				return errMine
			}
			return nil
		})
	})
	for i, err := range errs {
		_, look := s.Meta(t.Context(), "n"+strconv.Itoa(i))
		if i%2 == 1 && (!errors.Is(err, errMine) || !errors.Is(look, store.ErrNotFound)) {
			t.Errorf("%d: update %v, look-up %v", i, err, look)
		}
		if i%2 == 0 && (err != nil || look != nil) {
			t.Errorf("%d: update %v, look-up %v", i, err, look)
		}
	}
}

func updateReadsItsWrites(t *testing.T, s store.Store) {
	b := box("mine")
	update(t, s, func(tx store.Tx) error {
		if err := tx.InsertSandbox(b); err != nil {
			return err
		}
		got, err := tx.SandboxByName(t.Context(), "mine")
		if err != nil || got.ID != b.ID || got.Revision != 1 {
			return fmt.Errorf("read %+v, %w", got, err)
		}
		if u, err := tx.Usage(t.Context(), ""); err != nil || u.Sandboxes != 1 {
			return fmt.Errorf("usage %+v, %w", u, err)
		}
		if _, err := s.Sandbox(t.Context(), b.ID); !errors.Is(err, store.ErrNotFound) {
			return fmt.Errorf("others see it before the end: %w", err)
		}
		return nil
	})
}

func updatesAreSerial(t *testing.T, s store.Store) {
	const n = 50
	errs := together(n, func(int) error {
		return s.Update(t.Context(), func(tx store.Tx) error {
			have, err := tx.Meta(t.Context(), "counter")
			if err != nil && !errors.Is(err, store.ErrNotFound) {
				return err
			}
			i, _ := strconv.Atoi(have)
			return tx.SetMeta("counter", strconv.Itoa(i+1))
		})
	})
	if ok := count(errs, nil); ok != n {
		t.Fatalf("%d of %d updates succeeded: %v", ok, n, errs)
	}
	if got := must[string](t)(s.Meta(t.Context(), "counter")); got != strconv.Itoa(n) {
		t.Errorf("counter %s, want %d: an update was lost", got, n)
	}
	if c := s.Commits(); c < 1 || c > n {
		t.Errorf("%d commits for %d updates", c, n)
	}
}

func canceledUpdate(t *testing.T, s store.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ran := false
	err := s.Update(ctx, func(store.Tx) error { ran = true; return nil })
	if !errors.Is(err, context.Canceled) || ran {
		t.Errorf("an update whose caller has gone: %v, ran %v", err, ran)
	}
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	err = s.Update(ctx, func(tx store.Tx) error {
		cancel() // too late to have an influence
		return tx.SetMeta("late", "v")
	})
	if got := must[string](t)(s.Meta(t.Context(), "late")); err != nil || got != "v" {
		t.Errorf("canceled on the way: %v, value %q", err, got)
	}
}

func recordsAreCopies(t *testing.T, s store.Store) {
	b := box("")
	b.Env = map[string]string{"A": "1"}
	o := op("create")
	o.Steps = []operation.Step{{Name: "a"}}
	insert(t, s, b)
	update(t, s, func(tx store.Tx) error { return tx.InsertOperation(o) })
	b.Env["A"], o.Steps[0].Name = "changed", "changed"
	got := boxIn(t.Context(), t, s, b.ID)
	if got.Env["A"] != "1" {
		t.Errorf("changing what was passed changed the record: %v", got.Env)
	}
	got.Env["A"] = "changed"
	if again := boxIn(t.Context(), t, s, b.ID); again.Env["A"] != "1" {
		t.Errorf("changing what was returned changed the record: %v", again.Env)
	}
	if again := must[operation.Operation](t)(s.Operation(t.Context(), o.ID)); again.Steps[0].Name != "a" {
		t.Errorf("changing passed steps changed the record: %v", again.Steps)
	}
}

func idempotency(t *testing.T, s store.Store) {
	want := store.IdempotencyEntry{IdempotencyID: store.IdempotencyID{Principal: "p", Scope: "POST /x", Key: "k"},
		Fingerprint: [32]byte{1, 2, 255}, ResultID: "op_1", CreatedAt: epoch()}
	add := func(e store.IdempotencyEntry) error {
		return s.Update(t.Context(), func(tx store.Tx) error { return tx.InsertIdempotency(e) })
	}
	if err := add(want); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, must[store.IdempotencyEntry](t)(s.Idempotency(t.Context(), want.IdempotencyID))); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if err := add(want); !errors.Is(err, store.ErrExists) {
		t.Errorf("second entry: %v, want ErrExists", err)
	}
	for _, change := range []func(*store.IdempotencyID){
		func(id *store.IdempotencyID) { id.Principal = "q" },
		func(id *store.IdempotencyID) { id.Scope = "DELETE /x" },
		func(id *store.IdempotencyID) { id.Key = "K" },
	} {
		other := want
		change(&other.IdempotencyID)
		if err := add(other); err != nil {
			t.Errorf("entry of another request %+v: %v", other.IdempotencyID, err)
		}
	}
	update(t, s, func(tx store.Tx) error { return tx.DeleteIdempotency(want.IdempotencyID) })
	if err := add(want); err != nil {
		t.Errorf("entry after its deletion: %v", err)
	}
}

func concurrentIdempotency(t *testing.T, s store.Store) {
	errs := together(20, func(i int) error {
		return s.Update(t.Context(), func(tx store.Tx) error {
			if err := tx.InsertSandbox(box("")); err != nil {
				return err
			}
			return tx.InsertIdempotency(store.IdempotencyEntry{IdempotencyID: store.IdempotencyID{Key: "k"},
				ResultID: strconv.Itoa(i), CreatedAt: epoch()})
		})
	})
	if ok, dup := count(errs, nil), count(errs, store.ErrExists); ok != 1 || dup != 19 {
		t.Errorf("%d succeeded, %d were duplicates, want 1 and 19: %v", ok, dup, errs)
	}
	if live := must[[]sandbox.Sandbox](t)(s.LiveSandboxes(t.Context())); len(live) != 1 {
		t.Errorf("%d sandboxes, want that of the one accepted request", len(live))
	}
}

func closed(t *testing.T, s store.Store) {
	insert(t, s, box("x"))
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Fatalf("Close: %v", err)
	}
	if err := s.Update(t.Context(), func(store.Tx) error { return nil }); !errors.Is(err, store.ErrClosed) {
		t.Errorf("Update: %v, want ErrClosed", err)
	}
	if _, err := s.SandboxByName(t.Context(), "x"); !errors.Is(err, store.ErrClosed) {
		t.Errorf("SandboxByName: %v, want ErrClosed", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := s.Sandboxes(ctx, store.SandboxFilter{}); !errors.Is(err, store.ErrClosed) {
		t.Errorf("Sandboxes: %v, want ErrClosed", err)
	}
}
