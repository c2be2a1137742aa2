package memory

import (
	"context"

	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
)

// read runs one look-up on the present version.
func read[T any](ctx context.Context, s *Store, look func(view) (T, error)) (T, error) {
	v, err := s.snapshot(ctx)
	if err != nil {
		var none T
		return none, err
	}
	return look(v)
}

// Sandbox implements store.Reader.
func (s *Store) Sandbox(ctx context.Context, id sandbox.ID) (sandbox.Sandbox, error) {
	return read(ctx, s, func(v view) (sandbox.Sandbox, error) { return v.Sandbox(ctx, id) })
}

// SandboxByName implements store.Reader.
func (s *Store) SandboxByName(ctx context.Context, name string) (sandbox.Sandbox, error) {
	return read(ctx, s, func(v view) (sandbox.Sandbox, error) { return v.SandboxByName(ctx, name) })
}

// Sandboxes implements store.Reader.
func (s *Store) Sandboxes(ctx context.Context, f store.SandboxFilter) (store.Page[sandbox.Sandbox], error) {
	return read(ctx, s, func(v view) (store.Page[sandbox.Sandbox], error) { return v.Sandboxes(ctx, f) })
}

// LiveSandboxes implements store.Reader.
func (s *Store) LiveSandboxes(ctx context.Context) ([]sandbox.Sandbox, error) {
	return read(ctx, s, func(v view) ([]sandbox.Sandbox, error) { return v.LiveSandboxes(ctx) })
}

// Usage implements store.Reader.
func (s *Store) Usage(ctx context.Context, exceptDriver string) (store.Usage, error) {
	return read(ctx, s, func(v view) (store.Usage, error) { return v.Usage(ctx, exceptDriver) })
}

// EndingLeases implements store.Reader.
func (s *Store) EndingLeases(ctx context.Context, limit int) ([]sandbox.Sandbox, error) {
	return read(ctx, s, func(v view) ([]sandbox.Sandbox, error) { return v.EndingLeases(ctx, limit) })
}

// Operation implements store.Reader.
func (s *Store) Operation(ctx context.Context, id sandbox.OperationID) (operation.Operation, error) {
	return read(ctx, s, func(v view) (operation.Operation, error) { return v.Operation(ctx, id) })
}

// Operations implements store.Reader.
func (s *Store) Operations(ctx context.Context, f store.OperationFilter) (store.Page[operation.Operation], error) {
	return read(ctx, s, func(v view) (store.Page[operation.Operation], error) { return v.Operations(ctx, f) })
}

// UnfinishedOperations implements store.Reader.
func (s *Store) UnfinishedOperations(ctx context.Context) ([]operation.Operation, error) {
	return read(ctx, s, func(v view) ([]operation.Operation, error) { return v.UnfinishedOperations(ctx) })
}

// OpenOperations implements store.Reader.
func (s *Store) OpenOperations(ctx context.Context, resource operation.Resource) ([]operation.Operation, error) {
	return read(ctx, s, func(v view) ([]operation.Operation, error) { return v.OpenOperations(ctx, resource) })
}

// Command implements store.Reader.
func (s *Store) Command(ctx context.Context, id sandbox.CommandID) (sandbox.Command, error) {
	return read(ctx, s, func(v view) (sandbox.Command, error) { return v.Command(ctx, id) })
}

// CommandByProcess implements store.Reader.
func (s *Store) CommandByProcess(ctx context.Context, box sandbox.ID, process sandbox.ProcessID) (sandbox.Command, error) {
	return read(ctx, s, func(v view) (sandbox.Command, error) { return v.CommandByProcess(ctx, box, process) })
}

// Commands implements store.Reader.
func (s *Store) Commands(ctx context.Context, box sandbox.ID, f store.CommandFilter) (store.Page[sandbox.Command], error) {
	return read(ctx, s, func(v view) (store.Page[sandbox.Command], error) { return v.Commands(ctx, box, f) })
}

// OpenCommands implements store.Reader.
func (s *Store) OpenCommands(ctx context.Context, box sandbox.ID) ([]sandbox.Command, error) {
	return read(ctx, s, func(v view) ([]sandbox.Command, error) { return v.OpenCommands(ctx, box) })
}

// LastCommands implements store.Reader.
func (s *Store) LastCommands(ctx context.Context, box sandbox.ID, n int) ([]sandbox.Command, error) {
	return read(ctx, s, func(v view) ([]sandbox.Command, error) { return v.LastCommands(ctx, box, n) })
}

// Templates implements store.Reader.
func (s *Store) Templates(ctx context.Context) ([]sandbox.Template, error) {
	return read(ctx, s, func(v view) ([]sandbox.Template, error) { return v.Templates(ctx) })
}

// Template implements store.Reader.
func (s *Store) Template(ctx context.Context, digest string) (sandbox.Template, error) {
	return read(ctx, s, func(v view) (sandbox.Template, error) { return v.Template(ctx, digest) })
}

// Key implements store.Reader.
func (s *Store) Key(ctx context.Context, hash auth.KeyHash) (store.Key, error) {
	return read(ctx, s, func(v view) (store.Key, error) { return v.Key(ctx, hash) })
}

// Idempotency implements store.Reader.
func (s *Store) Idempotency(ctx context.Context, id store.IdempotencyID) (store.IdempotencyEntry, error) {
	return read(ctx, s, func(v view) (store.IdempotencyEntry, error) { return v.Idempotency(ctx, id) })
}

// Events implements store.Reader.
func (s *Store) Events(ctx context.Context, after int64, f store.EventFilter, limit int) (store.EventPage, error) {
	return read(ctx, s, func(v view) (store.EventPage, error) { return v.Events(ctx, after, f, limit) })
}

// Meta implements store.Reader.
func (s *Store) Meta(ctx context.Context, name string) (string, error) {
	return read(ctx, s, func(v view) (string, error) { return v.Meta(ctx, name) })
}
