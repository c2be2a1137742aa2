package memory

import (
	"maps"
	"time"

	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
)

// tx implements store.Tx on a version that nobody else has yet.
type tx struct{ view }

var _ store.Tx = (*tx)(nil)

// put adds a value under a key that must be free.
func put[K comparable, V any](m map[K]V, key K, v V) error {
	if _, ok := m[key]; ok {
		return store.ErrExists
	}
	m[key] = v
	return nil
}

func (t *tx) nameFree(s sandbox.Sandbox) error {
	for _, other := range t.s.sandboxes {
		if s.Name != "" && s.Live() && other.Live() && other.Name == s.Name && other.ID != s.ID {
			return store.ErrNameTaken
		}
	}
	return nil
}

func (t *tx) InsertSandbox(s sandbox.Sandbox) error {
	if err := t.nameFree(s); err != nil {
		return err
	}
	s = s.Clone()
	s.Revision = 1
	return put(t.s.sandboxes, s.ID, s)
}

func (t *tx) UpdateSandbox(s sandbox.Sandbox) (sandbox.Sandbox, error) {
	old, ok := t.s.sandboxes[s.ID]
	if !ok || old.Revision != s.Revision {
		return s, store.ErrConflict
	}
	if err := t.nameFree(s); err != nil {
		return s, err
	}
	s = s.Clone()
	s.Revision++
	s.CreatedAt = old.CreatedAt
	t.s.sandboxes[s.ID] = s
	return s.Clone(), nil
}

func (t *tx) InsertOperation(op operation.Operation) error {
	if err := put(t.s.operations, op.ID, cloneOperation(op)); err != nil {
		return err
	}
	t.s.accepted[op.ID] = len(t.s.accepted) + 1
	return nil
}

func (t *tx) UpdateOperation(op operation.Operation) error {
	old, ok := t.s.operations[op.ID]
	if !ok || old.State.Ended() {
		return store.ErrConflict
	}
	op.Kind, op.Resource, op.CreatedAt = old.Kind, old.Resource, old.CreatedAt
	t.s.operations[op.ID] = cloneOperation(op)
	return nil
}

func (t *tx) InsertCommand(c sandbox.Command) error {
	for _, other := range t.s.commands {
		if other.SandboxID == c.SandboxID && other.ProcessID == c.ProcessID {
			return store.ErrExists
		}
	}
	c = c.Clone()
	c.Revision = 1
	return put(t.s.commands, c.ID, c)
}

func (t *tx) UpdateCommand(c sandbox.Command) (sandbox.Command, error) {
	old, ok := t.s.commands[c.ID]
	if !ok || old.Revision != c.Revision {
		return c, store.ErrConflict
	}
	c = c.Clone()
	c.Revision++
	t.s.commands[c.ID] = c
	return c.Clone(), nil
}

func (t *tx) DeleteCommand(id sandbox.CommandID) error {
	delete(t.s.commands, id)
	return nil
}

func (t *tx) DeleteCommands(box sandbox.ID) error {
	maps.DeleteFunc(t.s.commands, func(_ sandbox.CommandID, c sandbox.Command) bool { return c.SandboxID == box })
	return nil
}

func (t *tx) ReplaceTemplates(list []sandbox.Template) error {
	used := map[string]bool{}
	for _, s := range t.s.sandboxes {
		used[s.Template.Digest] = used[s.Template.Digest] || s.Live()
	}
	for digest, old := range t.s.templates {
		old.listed, old.Names = false, []string{}
		t.s.templates[digest] = old
		if !used[digest] {
			delete(t.s.templates, digest)
		}
	}
	for _, tpl := range list {
		t.s.templates[tpl.Digest] = listedTemplate{cloneTemplate(tpl), true}
	}
	return nil
}

func (t *tx) InsertKey(k store.Key) error {
	for _, other := range t.s.keys {
		if other.ID == k.ID {
			return store.ErrExists
		}
	}
	return put(t.s.keys, k.Hash, k)
}

func (t *tx) InsertIdempotency(e store.IdempotencyEntry) error {
	return put(t.s.idempotency, e.IdempotencyID, e)
}

func (t *tx) DeleteIdempotency(id store.IdempotencyID) error {
	delete(t.s.idempotency, id)
	return nil
}

func (t *tx) SetMeta(name, value string) error {
	t.s.meta[name] = value
	return nil
}

func (t *tx) Purge(idempotency, records time.Time) error {
	maps.DeleteFunc(t.s.idempotency, func(_ store.IdempotencyID, e store.IdempotencyEntry) bool {
		return e.CreatedAt.Before(idempotency)
	})
	// accepted keeps those that are purged: it is what the next number comes from.
	maps.DeleteFunc(t.s.operations, func(_ sandbox.OperationID, o operation.Operation) bool {
		return o.State.Ended() && o.EndedAt.Before(records)
	})
	maps.DeleteFunc(t.s.sandboxes, func(_ sandbox.ID, s sandbox.Sandbox) bool {
		return !s.Live() && s.DeletedAt.Before(records)
	})
	return nil
}
