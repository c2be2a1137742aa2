// Package storetest is the suite every driver of package store must pass.
package storetest

import (
	"context"
	"testing"
	"time"

	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
)

// Run runs the suite. open returns an empty store and closes it when the test ends.
func Run(t *testing.T, open func(t *testing.T) store.Store) {
	for _, check := range []struct {
		name string
		run  func(*testing.T, store.Store)
	}{
		{"SandboxRoundTrip", sandboxRoundTrip},
		{"Leases", leases},
		{"OperationRoundTrip", operationRoundTrip},
		{"CommandRoundTrip", commandRoundTrip},
		{"MissingRecords", missingRecords},
		{"DuplicateIDs", duplicateIDs},
		{"NamesAreUniqueAmongLive", namesAreUniqueAmongLive},
		{"ConcurrentNames", concurrentNames},
		{"CompareAndSet", compareAndSet},
		{"EndedOperationsStay", endedOperationsStay},
		{"UpdateIsAtomic", updateIsAtomic},
		{"UpdateReadsItsWrites", updateReadsItsWrites},
		{"UpdatesAreSerial", updatesAreSerial},
		{"CanceledUpdate", canceledUpdate},
		{"RecordsAreCopies", recordsAreCopies},
		{"PagesAreStable", pagesAreStable},
		{"PageBounds", pageBounds},
		{"SandboxFilters", sandboxFilters},
		{"CommandFilters", commandFilters},
		{"OperationLists", operationLists},
		{"OpenOperations", openOperations},
		{"Usage", usage},
		{"UsageFollows", usageFollows},
		{"KeptForever", keptForever},
		{"Templates", templates},
		{"Keys", keys},
		{"Idempotency", idempotency},
		{"ConcurrentIdempotency", concurrentIdempotency},
		{"Events", events},
		{"EventFilters", eventFilters},
		{"EventBounds", eventBounds},
		{"PurgeEvents", purgeEvents},
		{"EventsInOrderOfCommits", eventsInOrderOfCommits},
		{"Meta", meta},
		{"Purge", purge},
		{"Closed", closed},
	} {
		t.Run(check.name, func(t *testing.T) {
			t.Parallel()
			check.run(t, open(t))
		})
	}
}

// epoch is the time the suite's records are made at.
func epoch() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC) }

func box(name string) sandbox.Sandbox {
	return sandbox.Sandbox{ID: sandbox.NewID(), Name: name, State: sandbox.StateCreating,
		DesiredState: sandbox.StateRunning, Template: sandbox.TemplateRef{Ref: "mini:latest", Digest: "sha256:aa"},
		Driver: "fake", VCPUs: 1, MemoryMiB: 512, DiskMiB: 4096, Generation: 1, CreatedAt: epoch()}
}

func command(id sandbox.ID) sandbox.Command {
	return sandbox.Command{ID: sandbox.NewCommandID(), SandboxID: id, ProcessID: sandbox.NewProcessID(),
		Spec: sandbox.CommandSpec{Argv: []string{"true"}}, State: sandbox.CommandCreated, CreatedAt: epoch()}
}

func op(kind string) operation.Operation {
	return operation.Operation{ID: sandbox.NewOperationID(), Kind: kind, Resource: operation.Resource{Type: "sandbox",
		ID: string(sandbox.NewID())}, State: operation.Queued, Attempt: 1, CreatedAt: epoch()}
}

// update fails the test on an error.
func update(t *testing.T, s store.Store, fn func(store.Tx) error) {
	t.Helper()
	if err := s.Update(t.Context(), fn); err != nil {
		t.Fatalf("Update: %v", err)
	}
}

// must returns v or fails the test.
func must[T any](t *testing.T) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func insert(t *testing.T, s store.Store, boxes ...sandbox.Sandbox) {
	t.Helper()
	update(t, s, func(tx store.Tx) error {
		for _, b := range boxes {
			if err := tx.InsertSandbox(b); err != nil {
				return err
			}
		}
		return nil
	})
}

// boxIn fetches a sandbox.
func boxIn(ctx context.Context, t *testing.T, r store.Reader, id sandbox.ID) sandbox.Sandbox {
	t.Helper()
	b, err := r.Sandbox(ctx, id)
	if err != nil {
		t.Fatalf("Sandbox: %v", err)
	}
	return b
}
