package control_test

import (
	"context"
	"sync"
)

// hook lets a test step into the calls of a fake: it may hold them, or fail them with an error.
type hook struct {
	mu sync.Mutex
	fn func(ctx context.Context, call, id string) error
}

// setHook makes fn see every call from now on; nil: nobody does.
func (h *hook) setHook(fn func(ctx context.Context, call, id string) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fn = fn
}

// enter is what a fake calls first.
func (h *hook) enter(ctx context.Context, call, id string) error {
	h.mu.Lock()
	fn := h.fn
	h.mu.Unlock()
	if fn == nil {
		return nil
	}
	return fn(ctx, call, id)
}
