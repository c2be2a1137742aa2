package part

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/space-sandbox/space/internal/confine"
	"github.com/space-sandbox/space/internal/datadir"
)

// Sweep removes every machine and kernel object of an installation that no space up serves: what a control that could
// not be reached did not delete, and the installation's own control groups.
func Sweep(ctx context.Context, dir *datadir.Dir, driver string, logger *slog.Logger) error {
	unlock, err := waitLock(ctx, dir.NodeDir()+"/lock")
	if err != nil {
		return err
	}
	defer unlock()
	n, closeParts, err := newNode(ctx, dir, logger, func(string) (*backends, error) { return removalBackends(ctx, dir, driver, logger) })
	if err != nil {
		return err
	}
	defer closeParts()
	if err := errors.Join(n.RemoveAll(ctx), n.Close()); err != nil {
		return err
	}
	groups, err := confine.OpenGroups(dir.Installation.ID)
	if err != nil {
		return fmt.Errorf("control groups: %w", err)
	}
	return groups.Prune(ctx)
}
