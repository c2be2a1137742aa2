package node

import (
	"testing"
	"time"

	"github.com/space-sandbox/space/internal/sandbox"
)

// The ledger may look at an id while a machine of it is about to be made. Node sees to that machine like to any other: the
// reserve pauses it and lets it go on.
func TestEntryOfTheLedgerIsLikeAnyOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	free := w.space(room)
	n := w.start()
	id := sandbox.NewID()
	e, ok := n.tryAcquire(id)
	if !ok {
		t.Fatal("busy")
	}
	made := make(chan error, 1)
	go func() {
		_, err := service{n: n}.EnsureMachine(t.Context(), w.request(id))
		made <- err
	}()
	for waits := false; !waits; time.Sleep(time.Millisecond) {
		n.mu.Lock()
		waits = e.refs == 2
		n.mu.Unlock()
	}
	n.release(id, e)
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	free.Store(low)
	await(t, n, id, isHeld)
	free.Store(room)
	await(t, n, id, isRunning)
	w.remove(n, id)
	w.requireNothing()
}
