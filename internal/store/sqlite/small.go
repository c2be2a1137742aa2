package sqlite

import (
	"context"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/store"
)

// Key implements store.Reader.
func (r reader) Key(ctx context.Context, hash auth.KeyHash) (store.Key, error) {
	return one(ctx, r.q, func(row scanner) (k store.Key, err error) {
		k.Hash = hash
		return k, row.Scan(&k.ID, &k.Role, &k.Name, stamp{&k.CreatedAt})
	}, "SELECT id, role, name, created_at FROM keys WHERE hash = ?", hash.String())
}

// InsertKey implements store.Tx.
func (t *tx) InsertKey(k store.Key) error {
	return t.exec(nil, "INSERT INTO keys (hash, id, role, name, created_at) VALUES (?,?,?,?,?)",
		k.Hash.String(), k.ID, k.Role, k.Name, nanos(k.CreatedAt))
}

// Idempotency implements store.Reader.
func (r reader) Idempotency(ctx context.Context, id store.IdempotencyID) (store.IdempotencyEntry, error) {
	return one(ctx, r.q, func(row scanner) (store.IdempotencyEntry, error) {
		e := store.IdempotencyEntry{IdempotencyID: id}
		var fingerprint string
		if err := row.Scan(&fingerprint, &e.ResultID, stamp{&e.CreatedAt}); err != nil {
			return e, err
		}
		raw, err := hex.DecodeString(fingerprint)
		if err != nil || copy(e.Fingerprint[:], raw) != len(e.Fingerprint) {
			return e, fmt.Errorf("fingerprint column holds %q", fingerprint)
		}
		return e, nil
	}, "SELECT fingerprint, result_id, created_at FROM idempotency WHERE principal = ? AND scope = ? AND key = ?",
		id.Principal, id.Scope, id.Key)
}

// InsertIdempotency implements store.Tx.
func (t *tx) InsertIdempotency(e store.IdempotencyEntry) error {
	return t.exec(nil, "INSERT INTO idempotency (principal, scope, key, fingerprint, result_id, created_at) VALUES (?,?,?,?,?,?)",
		e.Principal, e.Scope, e.Key, hex.EncodeToString(e.Fingerprint[:]), e.ResultID, nanos(e.CreatedAt))
}

// DeleteIdempotency implements store.Tx.
func (t *tx) DeleteIdempotency(id store.IdempotencyID) error {
	return t.exec(nil, "DELETE FROM idempotency WHERE principal = ? AND scope = ? AND key = ?", id.Principal, id.Scope, id.Key)
}

// Meta implements store.Reader.
func (r reader) Meta(ctx context.Context, name string) (string, error) {
	return one(ctx, r.q, scanString, "SELECT value FROM meta WHERE name = ?", name)
}

// SetMeta implements store.Tx.
func (t *tx) SetMeta(name, value string) error {
	return t.exec(nil, "INSERT OR REPLACE INTO meta (name, value) VALUES (?,?)", name, value)
}

// Purge implements store.Tx.
func (t *tx) Purge(idempotency, records time.Time) error {
	if err := t.exec(nil, "DELETE FROM idempotency WHERE created_at < ?", nanos(idempotency)); err != nil {
		return err
	}
	err := t.exec(nil, "DELETE FROM operations WHERE state NOT IN ('queued', 'running') AND ended_at < ?", nanos(records))
	if err != nil {
		return err
	}
	return t.exec(nil, "DELETE FROM sandboxes WHERE state = 'deleted' AND deleted_at < ?", nanos(records))
}
