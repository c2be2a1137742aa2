package agent

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"github.com/space-sandbox/space/internal/sandbox"
)

// watcher collects which processes have changed since its client last took them.
type watcher struct {
	limit int
	wake  chan struct{} // holds at most one token

	mu    sync.Mutex
	dirty map[*process]struct{}
}

// mark notes a change. It never blocks.
func (w *watcher) mark(p *process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.dirty) <= w.limit { // beyond it take fails anyway
		w.dirty[p] = struct{}{}
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// take returns what has changed, in the order of creation. It fails when so much has changed that the client must
// begin anew.
func (w *watcher) take() ([]*process, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.dirty) > w.limit {
		return nil, &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the watcher is too slow",
			Remedy: "watch again: it begins with the whole state"}
	}
	list := slices.SortedFunc(maps.Keys(w.dirty), func(a, b *process) int { return cmp.Compare(a.seq, b.seq) })
	clear(w.dirty)
	return list, nil
}
