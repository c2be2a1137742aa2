package sqlite

import (
	"context"
	"slices"

	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
)

const sandboxColumns = `id, name, state, desired_state, reason, detail, template_ref, template_digest, driver, isolation,
	vcpus, memory_mib, disk_mib, env, metadata, generation, agent_token, owner, created_at, ready_at, deleted_at,
	operation_id, lease_ttl, lease_on_expiry, lease_expires_at, lease_remaining, revision`

func scanSandbox(row scanner) (s sandbox.Sandbox, err error) {
	var lease sandbox.Lease
	err = row.Scan(&s.ID, &s.Name, &s.State, &s.DesiredState, &s.Reason, &s.Detail, &s.Template.Ref, &s.Template.Digest,
		&s.Driver, &s.Isolation, &s.VCPUs, &s.MemoryMiB, &s.DiskMiB, document{&s.Env}, document{&s.Metadata}, &s.Generation,
		&s.AgentToken, &s.Owner, stamp{&s.CreatedAt}, stamp{&s.ReadyAt}, stamp{&s.DeletedAt}, &s.OperationID,
		&lease.TTL, &lease.OnExpiry, stamp{&lease.ExpiresAt}, &lease.Remaining, &s.Revision)
	if lease.TTL != 0 {
		s.Lease = &lease
	}
	return s, err
}

// sandboxValues are the columns but id and revision.
func sandboxValues(s sandbox.Sandbox) ([]any, error) {
	env, err := text(s.Env)
	if err != nil {
		return nil, err
	}
	metadata, err := text(s.Metadata)
	if err != nil {
		return nil, err
	}
	var lease sandbox.Lease
	if s.Lease != nil {
		lease = *s.Lease
	}
	return []any{s.Name, s.State, s.DesiredState, s.Reason, s.Detail, s.Template.Ref, s.Template.Digest, s.Driver,
		s.Isolation, s.VCPUs, s.MemoryMiB, s.DiskMiB, env, metadata, s.Generation, s.AgentToken, s.Owner,
		nanos(s.CreatedAt), nanos(s.ReadyAt), nanos(s.DeletedAt), s.OperationID,
		int64(lease.TTL), lease.OnExpiry, nanos(lease.ExpiresAt), int64(lease.Remaining)}, nil
}

// createdAtValue is where sandboxValues has created_at.
const createdAtValue = 17

var sandboxList = list[sandbox.Sandbox]{table: "sandboxes", columns: sandboxColumns, scan: scanSandbox,
	position: func(s sandbox.Sandbox) store.Position {
		return store.Position{CreatedAt: s.CreatedAt, ID: string(s.ID)}
	}}

// Sandbox implements store.Reader.
func (r reader) Sandbox(ctx context.Context, id sandbox.ID) (sandbox.Sandbox, error) {
	return one(ctx, r.q, scanSandbox, "SELECT "+sandboxColumns+" FROM sandboxes WHERE id = ?", id)
}

// SandboxByName implements store.Reader.
func (r reader) SandboxByName(ctx context.Context, name string) (sandbox.Sandbox, error) {
	return one(ctx, r.q, scanSandbox, "SELECT "+sandboxColumns+
		" FROM sandboxes WHERE name = ? AND name <> '' AND state <> 'deleted'", name)
}

// Sandboxes implements store.Reader.
func (r reader) Sandboxes(ctx context.Context, f store.SandboxFilter) (store.Page[sandbox.Sandbox], error) {
	var sel selection
	if len(f.States) > 0 {
		in(&sel, "state", f.States)
	} else {
		sel.where("state <> 'deleted'")
	}
	if f.ID != "" {
		sel.where("id = ?", f.ID)
	}
	if !f.CreatedAfter.IsZero() {
		sel.where("created_at > ?", nanos(f.CreatedAfter))
	}
	if f.Template != "" {
		sel.where("(template_ref = ? OR template_digest = ?)", f.Template, f.Template)
	}
	for k, v := range f.Metadata {
		sel.where("EXISTS (SELECT 1 FROM json_each(metadata) AS m WHERE m.key = ? AND m.value = ?)", k, v)
	}
	return sandboxList.page(ctx, r.q, sel, f.PageRequest)
}

// LiveSandboxes implements store.Reader.
func (r reader) LiveSandboxes(ctx context.Context) ([]sandbox.Sandbox, error) {
	return collect(ctx, r.q, scanSandbox, "SELECT "+sandboxColumns+
		" FROM sandboxes WHERE state <> 'deleted' ORDER BY created_at, id")
}

// Usage implements store.Reader. Triggers keep the table (see migrations).
func (r reader) Usage(ctx context.Context, exceptDriver string) (store.Usage, error) {
	return one(ctx, r.q, func(row scanner) (u store.Usage, err error) {
		return u, row.Scan(&u.Sandboxes, &u.MemoryMiB, &u.VCPUs)
	}, `SELECT coalesce(sum(sandboxes), 0), coalesce(sum(memory_mib), 0), coalesce(sum(vcpus), 0) FROM usage
		WHERE driver <> ?`, exceptDriver)
}

// EndingLeases implements store.Reader.
func (r reader) EndingLeases(ctx context.Context, limit int) ([]sandbox.Sandbox, error) {
	return collect(ctx, r.q, scanSandbox, "SELECT "+sandboxColumns+
		" FROM sandboxes WHERE lease_expires_at <> 0 ORDER BY lease_expires_at, id LIMIT ?", limit)
}

// InsertSandbox implements store.Tx.
func (t *tx) InsertSandbox(s sandbox.Sandbox) error {
	values, err := sandboxValues(s)
	if err != nil {
		return err
	}
	return t.exec(nil, "INSERT INTO sandboxes ("+sandboxColumns+
		") VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,1)", append([]any{s.ID}, values...)...)
}

// UpdateSandbox implements store.Tx.
func (t *tx) UpdateSandbox(s sandbox.Sandbox) (sandbox.Sandbox, error) {
	values, err := sandboxValues(s)
	if err != nil {
		return s, err
	}
	// An index is rewritten for each of its columns that is set, also to what it was.
	values = slices.Delete(values, createdAtValue, createdAtValue+1)
	err = t.exec(store.ErrConflict, `UPDATE sandboxes SET name=?, state=?, desired_state=?, reason=?, detail=?,
		template_ref=?, template_digest=?, driver=?, isolation=?, vcpus=?, memory_mib=?, disk_mib=?, env=?, metadata=?,
		generation=?, agent_token=?, owner=?, ready_at=?, deleted_at=?, operation_id=?,
		lease_ttl=?, lease_on_expiry=?, lease_expires_at=?, lease_remaining=?, revision=revision+1
		WHERE id=? AND revision=?`, append(values, s.ID, s.Revision)...)
	if err != nil {
		return s, err
	}
	s = s.Clone()
	s.Revision++
	return s, nil
}
