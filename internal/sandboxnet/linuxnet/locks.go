package linuxnet

import (
	"sync"

	"github.com/space-sandbox/space/internal/sandbox"
)

// keyedLocks is one lock per sandbox that has a call under way. The zero value is ready.
type keyedLocks struct {
	mu   sync.Mutex
	held map[sandbox.ID]*keyedLock
}

type keyedLock struct {
	mu    sync.Mutex
	users int
}

// lock waits for the lock of id and returns the function that gives it back.
func (l *keyedLocks) lock(id sandbox.ID) (unlock func()) {
	l.mu.Lock()
	if l.held == nil {
		l.held = make(map[sandbox.ID]*keyedLock)
	}
	k := l.held[id]
	if k == nil {
		k = &keyedLock{}
		l.held[id] = k
	}
	k.users++
	l.mu.Unlock()

	k.mu.Lock()
	return func() {
		k.mu.Unlock()
		l.mu.Lock()
		defer l.mu.Unlock()
		if k.users--; k.users == 0 {
			delete(l.held, id)
		}
	}
}
