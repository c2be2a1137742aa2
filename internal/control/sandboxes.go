package control

import (
	"context"
	"errors"

	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
)

// find resolves a ref, an id or a name, to a sandbox that is not deleted.
func find(ctx context.Context, r store.Reader, ref string) (box sandbox.Sandbox, err error) {
	if id, perr := sandbox.ParseID(ref); perr == nil {
		box, err = r.Sandbox(ctx, id)
	} else {
		box, err = r.SandboxByName(ctx, ref)
	}
	if errors.Is(err, store.ErrNotFound) || err == nil && !box.Live() {
		return sandbox.Sandbox{}, noSandbox(ref)
	}
	return box, storeError(err)
}

// GetSandbox returns a sandbox by id or name.
func (c *Control) GetSandbox(ctx context.Context, ref string) (sandbox.Sandbox, error) {
	return find(ctx, c.Store, ref)
}

// ListSandboxes returns one page.
func (c *Control) ListSandboxes(ctx context.Context, filter SandboxFilter) (Page[sandbox.Sandbox], error) {
	if _, err := filter.Normalize(); err != nil && !errors.Is(err, store.ErrBadCursor) {
		return Page[sandbox.Sandbox]{}, invalid("limit", err.Error())
	}
	if filter.Template != "" {
		filter.Template = normalRef(filter.Template)
	}
	page, err := c.Store.Sandboxes(ctx, filter)
	return page, storeError(err)
}

// PatchSandbox changes name, metadata and lease, which live in the record and can be changed in every state.
func (c *Control) PatchSandbox(ctx context.Context, ref string, patch SandboxPatch) (sandbox.Sandbox, error) {
	if patch.Name != nil && *patch.Name != "" {
		if _, err := sandbox.ParseName(*patch.Name); err != nil {
			return sandbox.Sandbox{}, err
		}
	}
	var out sandbox.Sandbox
	err := c.Store.Update(ctx, func(tx store.Tx) error {
		box, err := find(ctx, tx, ref)
		if err != nil {
			return err
		}
		if patch.Name != nil {
			box.Name = *patch.Name
		}
		if patch.Metadata != nil {
			box.Metadata = patch.Metadata
		}
		if patch.Lease != nil {
			if box.Lease, err = patchLease(box.Lease, *patch.Lease, box.State, c.outbox.leases.now()); err != nil {
				return err
			}
		}
		out, err = tx.UpdateSandbox(box)
		return err
	})
	return out, storeError(err)
}

// changeBox applies change to a sandbox's present record in tx.
func changeBox(ctx context.Context, tx store.Tx, id sandbox.ID, change func(*sandbox.Sandbox)) error {
	box, err := tx.Sandbox(ctx, id)
	if err != nil {
		return err
	}
	change(&box)
	_, err = tx.UpdateSandbox(box)
	return err
}
