package storetest

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
)

func sandboxRoundTrip(t *testing.T, s store.Store) {
	want := sandbox.Sandbox{ID: sandbox.NewID(), Name: "full", State: sandbox.StateFailed,
		DesiredState: sandbox.StateRunning, Reason: sandbox.ReasonOOM, Detail: "line\nline",
		Template: sandbox.TemplateRef{Ref: "base:latest", Digest: "sha256:bb"}, Driver: "qemu", Isolation: "microvm/kvm",
		VCPUs: 2, MemoryMiB: 1024, DiskMiB: 8192, Env: map[string]string{"A": "b\x00ü"}, Metadata: map[string]string{"team": "x"},
		Generation: 3, AgentToken: "ab", Owner: "key_1", CreatedAt: epoch(), ReadyAt: epoch().Add(time.Second),
		DeletedAt: epoch().Add(time.Hour), OperationID: sandbox.NewOperationID(),
		Lease: &sandbox.Lease{TTL: time.Hour, OnExpiry: sandbox.ExpirePause, ExpiresAt: epoch().Add(2 * time.Hour), Remaining: 1}}
	insert(t, s, want)
	want.Revision = 1
	if d := cmp.Diff(want, boxIn(t.Context(), t, s, want.ID)); d != "" {
		t.Errorf("after insert (-want +got):\n%s", d)
	}
	want.Env, want.Metadata, want.ReadyAt, want.Name, want.Lease = nil, map[string]string{}, time.Time{}, "", nil
	update(t, s, func(tx store.Tx) error { _, err := tx.UpdateSandbox(want); return err })
	want.Revision = 2
	if d := cmp.Diff(want, boxIn(t.Context(), t, s, want.ID)); d != "" {
		t.Errorf("after update (-want +got):\n%s", d)
	}
}

func operationRoundTrip(t *testing.T, s store.Store) {
	want := op("create")
	update(t, s, func(tx store.Tx) error { return tx.InsertOperation(want) })
	if d := cmp.Diff(want, must[operation.Operation](t)(s.Operation(t.Context(), want.ID))); d != "" {
		t.Errorf("after insert (-want +got):\n%s", d)
	}
	want.State, want.NoChange, want.Attempt, want.Input = operation.Failed, true, 2, `{"a":"ä"}`
	want.StartedAt, want.EndedAt = epoch().Add(time.Second), epoch().Add(time.Minute)
	want.Steps = []operation.Step{
		{Name: "machine", State: operation.Succeeded, StartedAt: epoch(), EndedAt: epoch().Add(time.Second)},
		{Name: "ready", State: operation.Failed, StartedAt: epoch(), EndedAt: epoch().Add(time.Second), Attempts: 3, Error: "no"}}
	want.Error = &sandbox.Error{Code: sandbox.CodePoolFull, Message: "m", Cause: "c", Remedy: "r",
		Fields: []sandbox.FieldError{{Field: "disk_mib", Message: "x"}}}
	update(t, s, func(tx store.Tx) error { return tx.UpdateOperation(want) })
	if d := cmp.Diff(want, must[operation.Operation](t)(s.Operation(t.Context(), want.ID))); d != "" {
		t.Errorf("after update (-want +got):\n%s", d)
	}
}

func commandRoundTrip(t *testing.T, s store.Store) {
	code := 0
	want := sandbox.Command{ID: sandbox.NewCommandID(), SandboxID: sandbox.NewID(), ProcessID: sandbox.NewProcessID(),
		Spec: sandbox.CommandSpec{Argv: []string{"sh", "-c", "echo 'ü'"}, Env: map[string]string{"A": ""}, Cwd: "/tmp",
			User: "user", Stdin: true, PTY: &sandbox.TerminalSize{Cols: 65535, Rows: 24}, TimeoutSeconds: 1.5, Tag: "t", Record: true},
		State: sandbox.CommandExited, Reason: "r", PID: 7, ExitCode: &code, Signal: "SIGKILL", ErrorCode: "e",
		ErrorMessage: "m", CreatedAt: epoch(), StartedAt: epoch().Add(1), EndedAt: epoch().Add(2), StdoutBytes: 1 << 40,
		StderrBytes: 2, PTYBytes: 6, StdinBytes: 3, Truncated: 4, Epoch: 5}
	update(t, s, func(tx store.Tx) error { return tx.InsertCommand(want) })
	want.Revision = 1
	if d := cmp.Diff(want, must[sandbox.Command](t)(s.Command(t.Context(), want.ID))); d != "" {
		t.Errorf("after insert (-want +got):\n%s", d)
	}
	want.ExitCode, want.State, want.EndedAt = nil, sandbox.CommandLost, time.Time{}
	update(t, s, func(tx store.Tx) error { _, err := tx.UpdateCommand(want); return err })
	want.Revision = 2
	got := must[sandbox.Command](t)(s.CommandByProcess(t.Context(), want.SandboxID, want.ProcessID))
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("after update (-want +got):\n%s", d)
	}
	update(t, s, func(tx store.Tx) error { return tx.DeleteCommand(want.ID) })
	if _, err := s.Command(t.Context(), want.ID); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("after delete: %v", err)
	}
}

func missingRecords(t *testing.T, s store.Store) {
	ctx := t.Context()
	for name, look := range map[string]func() error{
		"Sandbox":          func() error { _, err := s.Sandbox(ctx, sandbox.NewID()); return err },
		"SandboxByName":    func() error { _, err := s.SandboxByName(ctx, "x"); return err },
		"no name":          func() error { _, err := s.SandboxByName(ctx, ""); return err },
		"Operation":        func() error { _, err := s.Operation(ctx, sandbox.NewOperationID()); return err },
		"Command":          func() error { _, err := s.Command(ctx, sandbox.NewCommandID()); return err },
		"CommandByProcess": func() error { _, err := s.CommandByProcess(ctx, sandbox.NewID(), sandbox.NewProcessID()); return err },
		"Template":         func() error { _, err := s.Template(ctx, "sha256:none"); return err },
		"Key":              func() error { _, err := s.Key(ctx, auth.Hash(auth.NewKey())); return err },
		"Idempotency":      func() error { _, err := s.Idempotency(ctx, store.IdempotencyID{Key: "k"}); return err },
		"Meta":             func() error { _, err := s.Meta(ctx, "x"); return err },
	} {
		insertNameless(t, s)
		if err := look(); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("%s: %v, want ErrNotFound", name, err)
		}
	}
	for name, write := range map[string]func(store.Tx) error{
		"UpdateSandbox":   func(tx store.Tx) error { _, err := tx.UpdateSandbox(box("")); return err },
		"UpdateCommand":   func(tx store.Tx) error { _, err := tx.UpdateCommand(command(sandbox.NewID())); return err },
		"UpdateOperation": func(tx store.Tx) error { return tx.UpdateOperation(op("create")) },
	} {
		if err := s.Update(ctx, write); !errors.Is(err, store.ErrConflict) {
			t.Errorf("%s of a missing record: %v, want ErrConflict", name, err)
		}
	}
}

// insertNameless adds a sandbox without a name, which no look-up by name may find.
func insertNameless(t *testing.T, s store.Store) {
	t.Helper()
	insert(t, s, box(""))
}

func duplicateIDs(t *testing.T, s store.Store) {
	b, o, c := box("one"), op("create"), command(sandbox.NewID())
	update(t, s, func(tx store.Tx) error {
		return errors.Join(tx.InsertSandbox(b), tx.InsertOperation(o), tx.InsertCommand(c))
	})
	again := b
	again.Name = ""
	twin := command(c.SandboxID)
	twin.ProcessID = c.ProcessID
	for name, write := range map[string]func(store.Tx) error{
		"sandbox":   func(tx store.Tx) error { return tx.InsertSandbox(again) },
		"operation": func(tx store.Tx) error { return tx.InsertOperation(o) },
		"command":   func(tx store.Tx) error { return tx.InsertCommand(c) },
		"process":   func(tx store.Tx) error { return tx.InsertCommand(twin) },
	} {
		if err := s.Update(t.Context(), write); !errors.Is(err, store.ErrExists) {
			t.Errorf("second %s: %v, want ErrExists", name, err)
		}
	}
}

func usage(t *testing.T, s store.Store) {
	var all []sandbox.Sandbox
	for i, state := range []sandbox.State{sandbox.StateCreating, sandbox.StateRunning, sandbox.StatePausing,
		sandbox.StatePaused, sandbox.StateResuming, sandbox.StateDeleting, sandbox.StateFailed, sandbox.StateDeleted} {
		b := box("")
		b.State, b.Driver, b.VCPUs, b.MemoryMiB = state, "qemu", 1, 1<<i
		all = append(all, b)
	}
	all = append(all, box(""))
	insert(t, s, all...)
	got := must[store.Usage](t)(s.Usage(t.Context(), "fake"))
	if want := (store.Usage{Sandboxes: 6, MemoryMiB: 63, VCPUs: 6}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// keptForever: an update does not change where a record stands in its list, nor what an operation is about.
func keptForever(t *testing.T, s store.Store) {
	b, o := box(""), op("create")
	o.Resource.ID = string(b.ID)
	insert(t, s, b)
	update(t, s, func(tx store.Tx) error { return tx.InsertOperation(o) })
	update(t, s, func(tx store.Tx) error {
		changed, later := boxIn(t.Context(), t, tx, b.ID), o
		changed.CreatedAt, changed.State = epoch().Add(time.Hour), sandbox.StateRunning
		later.CreatedAt, later.Kind, later.Resource.ID, later.State = epoch().Add(time.Hour), "delete", "other", operation.Running
		_, err := tx.UpdateSandbox(changed)
		return errors.Join(err, tx.UpdateOperation(later))
	})
	if got := boxIn(t.Context(), t, s, b.ID); !got.CreatedAt.Equal(b.CreatedAt) || got.State != sandbox.StateRunning {
		t.Errorf("sandbox: %+v", got)
	}
	got := must[operation.Operation](t)(s.Operation(t.Context(), o.ID))
	if !got.CreatedAt.Equal(o.CreatedAt) || got.Kind != o.Kind || got.Resource != o.Resource || got.State != operation.Running {
		t.Errorf("operation: %+v", got)
	}
}

// usageFollows changes records at random, also in updates that fail, and compares the sums with the records each time.
func usageFollows(t *testing.T, s store.Store) {
	ctx := t.Context()
	random := rand.New(rand.NewPCG(1, 2))
	states := []sandbox.State{sandbox.StateCreating, sandbox.StateRunning, sandbox.StatePaused, sandbox.StateFailed, sandbox.StateDeleted}
	change := func(b *sandbox.Sandbox) {
		b.State, b.Driver = states[random.IntN(len(states))], []string{"qemu", "fake", "firecracker"}[random.IntN(3)]
		b.VCPUs, b.MemoryMiB = 1+random.IntN(4), 1+random.IntN(1000)
	}
	var ids []sandbox.ID
	for step := range 200 {
		b, undone := box(""), errors.New("undone")
		change(&b)
		old := -1
		if len(ids) > 0 && random.IntN(3) > 0 {
			old = random.IntN(len(ids))
		}
		err := s.Update(ctx, func(tx store.Tx) (err error) {
			switch {
			case step%50 == 49:
				err = tx.Purge(epoch(), epoch().AddDate(1, 0, 0))
			case old < 0:
				err = tx.InsertSandbox(b)
			default:
				if b, err = tx.Sandbox(ctx, ids[old]); errors.Is(err, store.ErrNotFound) {
					return nil // purged
				} else if err == nil {
					change(&b)
					_, err = tx.UpdateSandbox(b)
				}
			}
			if err == nil && step%5 == 0 {
				err = undone
			}
			return err
		})
		if err != nil && !errors.Is(err, undone) {
			t.Fatal(err)
		}
		if err == nil && old < 0 {
			ids = append(ids, b.ID)
		}
		var want store.Usage
		for _, b := range must[[]sandbox.Sandbox](t)(s.LiveSandboxes(ctx)) {
			if b.State != sandbox.StateFailed && b.Driver != "fake" {
				want.Sandboxes, want.MemoryMiB, want.VCPUs = want.Sandboxes+1, want.MemoryMiB+int64(b.MemoryMiB), want.VCPUs+int64(b.VCPUs)
			}
		}
		if got := must[store.Usage](t)(s.Usage(ctx, "fake")); got != want {
			t.Fatalf("step %d: got %+v, want %+v", step, got, want)
		}
	}
}

func templates(t *testing.T, s store.Store) {
	ctx := t.Context()
	base := sandbox.Template{Digest: "sha256:b", Names: []string{"base:latest"}, SizeBytes: 5, MinDiskMiB: 9,
		Env: map[string]string{"A": "1"}, User: "user", Workdir: "/w", Entrypoint: []string{"x"}, CreatedAt: epoch()}
	mini := sandbox.Template{Digest: "sha256:a", Names: []string{"mini:latest"}, CreatedAt: epoch()}
	other := sandbox.Template{Digest: "sha256:c", Names: []string{"other:1", "other:latest"}, CreatedAt: epoch()}
	b := box("")
	b.Template.Digest = base.Digest
	insert(t, s, b)
	update(t, s, func(tx store.Tx) error { return tx.ReplaceTemplates([]sandbox.Template{other, mini, base}) })
	if d := cmp.Diff([]sandbox.Template{base, mini, other}, must[[]sandbox.Template](t)(s.Templates(ctx))); d != "" {
		t.Errorf("list (-want +got):\n%s", d)
	}
	update(t, s, func(tx store.Tx) error { return tx.ReplaceTemplates([]sandbox.Template{mini}) })
	if got := must[[]sandbox.Template](t)(s.Templates(ctx)); len(got) != 1 || got[0].Digest != mini.Digest {
		t.Errorf("after a replacement: %v", got)
	}
	kept := must[sandbox.Template](t)(s.Template(ctx, base.Digest))
	if kept.User != "user" || len(kept.Names) != 0 {
		t.Errorf("a template in use that is gone: %+v, want it without names", kept)
	}
	if _, err := s.Template(ctx, other.Digest); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("an unused template that is gone: %v, want ErrNotFound", err)
	}
	b.State, b.Revision = sandbox.StateDeleted, 1
	update(t, s, func(tx store.Tx) error {
		_, err := tx.UpdateSandbox(b)
		return errors.Join(err, tx.ReplaceTemplates([]sandbox.Template{mini}))
	})
	if _, err := s.Template(ctx, base.Digest); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("after its last sandbox was deleted: %v, want ErrNotFound", err)
	}
}

func keys(t *testing.T, s store.Store) {
	want := store.Key{ID: "key_1", Hash: auth.Hash(auth.NewKey()), Role: auth.RoleAdmin, Name: "first", CreatedAt: epoch()}
	update(t, s, func(tx store.Tx) error { return tx.InsertKey(want) })
	if d := cmp.Diff(want, must[store.Key](t)(s.Key(t.Context(), want.Hash))); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	sameHash, sameID := want, want
	sameHash.ID = "key_2"
	sameID.Hash = auth.Hash(auth.NewKey())
	for name, k := range map[string]store.Key{"hash": sameHash, "id": sameID} {
		if err := s.Update(t.Context(), func(tx store.Tx) error { return tx.InsertKey(k) }); !errors.Is(err, store.ErrExists) {
			t.Errorf("second key with this %s: %v, want ErrExists", name, err)
		}
	}
}

func meta(t *testing.T, s store.Store) {
	for _, want := range []string{"one", "two"} {
		update(t, s, func(tx store.Tx) error { return tx.SetMeta("x", want) })
		if got := must[string](t)(s.Meta(t.Context(), "x")); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func purge(t *testing.T, s store.Store) {
	old, fresh := epoch(), epoch().Add(time.Hour)
	gone, kept, alive := box("a"), box("a"), box("a")
	gone.State, gone.DeletedAt = sandbox.StateDeleted, old
	kept.State, kept.DeletedAt = sandbox.StateDeleted, fresh
	oldOp, freshOp, openOp := op("create"), op("create"), op("create")
	oldOp.State, oldOp.EndedAt = operation.Succeeded, old
	freshOp.State, freshOp.EndedAt = operation.Failed, fresh
	entry := func(key string, at time.Time) store.IdempotencyEntry {
		return store.IdempotencyEntry{IdempotencyID: store.IdempotencyID{Key: key}, CreatedAt: at}
	}
	insert(t, s, gone, kept, alive)
	update(t, s, func(tx store.Tx) error {
		return errors.Join(tx.InsertOperation(oldOp), tx.InsertOperation(freshOp), tx.InsertOperation(openOp),
			tx.InsertIdempotency(entry("old", old)), tx.InsertIdempotency(entry("fresh", fresh)))
	})
	between := old.Add(time.Minute)
	update(t, s, func(tx store.Tx) error { return tx.Purge(between, between) })
	ctx := t.Context()
	is := func(name string, err error, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
	_, err := s.Sandbox(ctx, gone.ID)
	is("old deleted sandbox", err, store.ErrNotFound)
	_, err = s.Sandbox(ctx, kept.ID)
	is("fresh deleted sandbox", err, nil)
	_, err = s.Sandbox(ctx, alive.ID)
	is("live sandbox", err, nil)
	_, err = s.Operation(ctx, oldOp.ID)
	is("old operation", err, store.ErrNotFound)
	_, err = s.Operation(ctx, freshOp.ID)
	is("fresh operation", err, nil)
	_, err = s.Operation(ctx, openOp.ID)
	is("open operation", err, nil)
	_, err = s.Idempotency(ctx, store.IdempotencyID{Key: "old"})
	is("old entry", err, store.ErrNotFound)
	_, err = s.Idempotency(ctx, store.IdempotencyID{Key: "fresh"})
	is("fresh entry", err, nil)
}
