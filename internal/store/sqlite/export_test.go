package sqlite

import (
	"context"

	"github.com/space-sandbox/space/internal/store"
)

// Enqueue puts an update into the writer's queue and returns how to wait for it.
func (s *Store) Enqueue(ctx context.Context, fn func(store.Tx) error) (wait func() error, err error) {
	u, err := s.enqueue(ctx, fn)
	if err != nil {
		return nil, err
	}
	return func() error { <-u.done; return u.err }, nil
}
