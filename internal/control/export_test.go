package control

import (
	"context"

	"github.com/space-sandbox/space/internal/sandbox"
)

// LookAtLeases makes the sweep of leases look now.
func (c *Control) LookAtLeases() {
	select {
	case c.outbox.sweep.ring <- struct{}{}:
	default:
	}
}

// ExpireLease acts on the end of a lease as it was when box was read, and reports whether it was refused as not due.
func (c *Control) ExpireLease(ctx context.Context, box sandbox.Sandbox) error {
	return c.expireLease(ctx, box)
}

// ErrNotDue is the refusal of an expiry that is not due any more.
func ErrNotDue() error { return errNotDue }
