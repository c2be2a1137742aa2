// Package memory is the store for tests: it passes the same suite as the real drivers and forgets everything when the
// process ends.
package memory

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
)

// Store implements store.Store in memory. Make one with New.
type Store struct {
	mu      sync.Mutex // held by writers for a whole update
	state   *state     // replaced, never changed; guarded by stateMu
	stateMu sync.RWMutex
	commits int64 // guarded by stateMu
	closed  bool  // guarded by stateMu
}

var _ store.Store = (*Store)(nil)

// state is one version of everything. Values in the maps are private copies.
type state struct {
	sandboxes   map[sandbox.ID]sandbox.Sandbox
	operations  map[sandbox.OperationID]operation.Operation
	accepted    map[sandbox.OperationID]int // their order of insertion
	commands    map[sandbox.CommandID]sandbox.Command
	templates   map[string]listedTemplate
	keys        map[auth.KeyHash]store.Key
	idempotency map[store.IdempotencyID]store.IdempotencyEntry
	meta        map[string]string
	events      []store.Event // in order; only ever appended to, so that versions can share it
	newest      int64         // the last number that was given
}

type listedTemplate struct {
	sandbox.Template
	listed bool
}

// New returns an empty store.
func New() *Store {
	return &Store{state: &state{
		sandboxes: map[sandbox.ID]sandbox.Sandbox{}, operations: map[sandbox.OperationID]operation.Operation{}, accepted: map[sandbox.OperationID]int{},
		commands: map[sandbox.CommandID]sandbox.Command{}, templates: map[string]listedTemplate{},
		keys: map[auth.KeyHash]store.Key{}, idempotency: map[store.IdempotencyID]store.IdempotencyEntry{},
		meta: map[string]string{},
	}}
}

func (s *state) clone() *state {
	return &state{maps.Clone(s.sandboxes), maps.Clone(s.operations), maps.Clone(s.accepted), maps.Clone(s.commands), maps.Clone(s.templates),
		maps.Clone(s.keys), maps.Clone(s.idempotency), maps.Clone(s.meta), s.events, s.newest}
}

// snapshot returns the present version.
func (s *Store) snapshot(ctx context.Context) (view, error) {
	s.stateMu.RLock()
	defer s.stateMu.RUnlock()
	if s.closed {
		return view{}, store.ErrClosed
	}
	return view{s.state}, ctx.Err()
}

// Update implements store.Store.
func (s *Store) Update(ctx context.Context, fn func(store.Tx) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := s.snapshot(ctx)
	if err != nil {
		return err
	}
	next := now.s.clone()
	if err := fn(&tx{view{next}}); err != nil {
		return err
	}
	s.stateMu.Lock()
	defer s.stateMu.Unlock()
	s.state = next
	s.commits++
	return nil
}

// Commits implements store.Store.
func (s *Store) Commits() int64 {
	s.stateMu.RLock()
	defer s.stateMu.RUnlock()
	return s.commits
}

// Close implements store.Store.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stateMu.Lock()
	defer s.stateMu.Unlock()
	s.closed = true
	return nil
}

func cloneOperation(op operation.Operation) operation.Operation {
	op.Steps = slices.Clone(op.Steps)
	if op.Error != nil {
		e := *op.Error
		e.Err = nil
		e.Fields = slices.Clone(e.Fields)
		op.Error = &e
	}
	return op
}

func cloneTemplate(t sandbox.Template) sandbox.Template {
	t.Names = slices.Clone(t.Names)
	t.Env = maps.Clone(t.Env)
	t.Entrypoint = slices.Clone(t.Entrypoint)
	return t
}
