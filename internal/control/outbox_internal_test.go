package control

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
	"github.com/space-sandbox/space/internal/store/memory"
)

// TestEveryWriteIsToldOrKnownToBeSilent: a new way to write into the record cannot be forgotten here.
func TestEveryWriteIsToldOrKnownToBeSilent(t *testing.T) {
	t.Parallel()
	silent := []string{"AppendEvent", "DeleteIdempotency", "InsertIdempotency", "InsertKey", "Purge", "PurgeEvents", "SetMeta"}
	told := []string{"DeleteCommand", "DeleteCommands", "InsertCommand", "InsertOperation", "InsertSandbox", "ReplaceTemplates",
		"UpdateCommand", "UpdateOperation", "UpdateSandbox"}
	var all []string
	read := reflect.TypeFor[store.Reader]()
	for m := range methods(reflect.TypeFor[store.Tx]()) {
		if _, reads := read.MethodByName(m); !reads {
			all = append(all, m)
		}
	}
	if got, want := slices.Sorted(slices.Values(all)), slices.Sorted(slices.Values(append(silent, told...))); !slices.Equal(got, want) {
		t.Errorf("a Tx writes with %v, known are %v", got, want)
	}
	o := testOutbox(time.Now)
	for _, name := range told {
		before := lastEvent(t, o)
		if err := o.Update(t.Context(), func(tx store.Tx) error { return writes()[name](tx) }); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if lastEvent(t, o) == before {
			t.Errorf("%s is not told", name)
		}
	}
}

func methods(t reflect.Type) func(func(string) bool) {
	return func(yield func(string) bool) {
		for i := range t.NumMethod() {
			if !yield(t.Method(i).Name) {
				return
			}
		}
	}
}

// writes has one use of every write that is told, on records of its own.
func writes() map[string]func(store.Tx) error {
	box := sandbox.Sandbox{ID: sandbox.NewID(), State: sandbox.StateRunning, Revision: 1}
	op := operation.Operation{ID: sandbox.NewOperationID(), State: operation.Queued}
	cmd := sandbox.Command{ID: sandbox.NewCommandID(), SandboxID: box.ID, ProcessID: sandbox.NewProcessID(), State: sandbox.CommandCreated, Revision: 1}
	// with writes something below the outbox, so that only the write in question is told.
	with := func(before func(store.Tx) error, write func(store.Tx) error) func(store.Tx) error {
		return func(tx store.Tx) error {
			if err := before(tx.(*outboxTx).Tx); err != nil {
				return err
			}
			return write(tx)
		}
	}
	addBox := func(tx store.Tx) error { return tx.InsertSandbox(box) }
	addOp := func(tx store.Tx) error { return tx.InsertOperation(op) }
	addCommand := func(tx store.Tx) error { return tx.InsertCommand(cmd) }
	return map[string]func(store.Tx) error{
		"InsertSandbox": addBox, "InsertOperation": addOp, "InsertCommand": addCommand,
		"UpdateSandbox":    with(addBox, func(tx store.Tx) error { _, err := tx.UpdateSandbox(box); return err }),
		"UpdateOperation":  with(addOp, func(tx store.Tx) error { return tx.UpdateOperation(op) }),
		"UpdateCommand":    with(addCommand, func(tx store.Tx) error { _, err := tx.UpdateCommand(cmd); return err }),
		"DeleteCommand":    with(addCommand, func(tx store.Tx) error { return tx.DeleteCommand(cmd.ID) }),
		"DeleteCommands":   with(addCommand, func(tx store.Tx) error { return tx.DeleteCommands(box.ID) }),
		"ReplaceTemplates": func(tx store.Tx) error { return tx.ReplaceTemplates([]sandbox.Template{{Digest: "sha256:x"}}) },
	}
}

func testOutbox(now func() time.Time) *outbox {
	began := now()
	return &outbox{Store: memory.New(), now: now, leases: newLeaseClock(now, func() time.Duration { return now().Sub(began) }),
		news: newPulse(), sweep: newAlarm()}
}

func lastEvent(t *testing.T, s store.Store) int64 {
	t.Helper()
	page, err := s.Events(t.Context(), 0, store.EventFilter{}, 1)
	if err != nil {
		t.Fatal(err)
	}
	return page.Newest
}

// TestLeaseFollowsTheState: its time passes in running and failed, stands still elsewhere, and begins anew after its end.
func TestLeaseFollowsTheState(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	o := testOutbox(func() time.Time { return now })
	box := sandbox.Sandbox{ID: sandbox.NewID(), State: sandbox.StateCreating, CreatedAt: now,
		Lease: &sandbox.Lease{TTL: time.Hour, OnExpiry: sandbox.ExpirePause, Remaining: time.Hour}}
	if err := o.Update(t.Context(), func(tx store.Tx) error { return tx.InsertSandbox(box) }); err != nil {
		t.Fatal(err)
	}
	for i, step := range []struct {
		passes time.Duration // before the sandbox goes to state
		state  sandbox.State
		left   time.Duration
		stands bool
	}{
		{10 * time.Hour, sandbox.StateRunning, time.Hour, false},
		{20 * time.Minute, sandbox.StatePausing, 40 * time.Minute, true},
		{5 * time.Minute, sandbox.StatePaused, 40 * time.Minute, true},
		{100 * time.Hour, sandbox.StateResuming, 40 * time.Minute, true},
		{time.Minute, sandbox.StateRunning, 40 * time.Minute, false},
		{10 * time.Minute, sandbox.StateRunning, 30 * time.Minute, false},
		{10 * time.Minute, sandbox.StateFailed, 20 * time.Minute, false},
		{10 * time.Minute, sandbox.StateRunning, 10 * time.Minute, false},
		{time.Hour, sandbox.StatePausing, 0, true},    // its end
		{time.Minute, sandbox.StateRunning, 0, false}, // the pause failed: it is due again
		{time.Minute, sandbox.StatePausing, 0, true},
		{time.Minute, sandbox.StatePaused, 0, true},
		{time.Hour, sandbox.StateResuming, 0, true},
		{time.Minute, sandbox.StateRunning, time.Hour, false}, // a new lease
		{time.Minute, sandbox.StatePaused, 59 * time.Minute, true},
		{time.Minute, sandbox.StateDeleting, 59 * time.Minute, true},
	} {
		now = now.Add(step.passes)
		err := o.Update(t.Context(), func(tx store.Tx) error {
			return changeBox(t.Context(), tx, box.ID, func(b *sandbox.Sandbox) { b.State = step.state })
		})
		got, rerr := o.Sandbox(t.Context(), box.ID)
		if err != nil || rerr != nil {
			t.Fatal(err, rerr)
		}
		if got.Lease.Left(now) != step.left || got.Lease.ExpiresAt.IsZero() != step.stands {
			t.Errorf("step %d, %s: %+v at %s, want %s left, standing still: %v", i, step.state, got.Lease, now, step.left, step.stands)
		}
	}
	page, err := o.Events(t.Context(), 0, store.EventFilter{Types: []store.EventType{store.EventLease}}, 1)
	if err != nil || len(page.Events) > 0 {
		t.Errorf("moves of the state are no events of the lease: %v %v", page.Events, err)
	}
}

// TestEventObjectsAreBounded: however large a thing is, its event is small, has no environment, and says what it lacks.
func TestEventObjectsAreBounded(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("<", 1<<20)
	env := map[string]string{"K": "hunter2"}
	labels, steps, fields := map[string]string{}, []operation.Step{}, []sandbox.FieldError{}
	for i := range 64 {
		labels[strings.Repeat("k", i+1)] = strings.Repeat("v", 4096)
	}
	for range 1000 {
		steps = append(steps, operation.Step{Name: "machine", State: operation.Failed, Error: long})
		fields = append(fields, sandbox.FieldError{Field: long, Message: long})
	}
	objects := map[string]func() ([]byte, error){
		"sandbox": func() ([]byte, error) {
			return sandboxObject(sandbox.Sandbox{Env: env, AgentToken: "hunter2", Detail: long, Metadata: labels}, "http://x")
		},
		"operation": func() ([]byte, error) {
			return operationObject(operation.Operation{Steps: steps, Error: &sandbox.Error{Message: long, Cause: long, Remedy: long, Fields: fields}})
		},
		"command": func() ([]byte, error) {
			return commandObject(sandbox.Command{Spec: sandbox.CommandSpec{Env: env, Cwd: long, Argv: slices.Repeat([]string{"ü"}, 1<<16)}, ErrorCode: "x", ErrorMessage: long})
		},
	}
	for _, name := range slices.Sorted(maps.Keys(objects)) {
		raw, err := objects[name]()
		if err != nil {
			t.Fatal(err)
		}
		var got struct{ Truncated bool }
		if err := json.Unmarshal(raw, &got); err != nil || !got.Truncated || len(raw) > 128<<10 || strings.Contains(string(raw), "hunter2") {
			t.Errorf("%s: %d bytes, truncated %v, %v", name, len(raw), got.Truncated, err)
		}
	}
	small, err := sandboxObject(sandbox.Sandbox{Env: env, Metadata: map[string]string{"team": "x"}}, "http://x")
	if err != nil || strings.Contains(string(small), "truncated") || !strings.Contains(string(small), `"team":"x"`) {
		t.Errorf("a small one: %s %v", small, err)
	}
}
