package node

import (
	"sync"

	"github.com/space-sandbox/space/internal/sandbox"
)

// reservedUIDs at the start of an installation's range are for workers (image import and the like), not machines.
const reservedUIDs = 64

// uidRange gives each machine a uid of its own. Safe for concurrent use.
type uidRange struct {
	base, count uint32

	mu   sync.Mutex
	used map[uint32]bool
	next uint32
}

func newUIDRange(base, count uint32) *uidRange {
	return &uidRange{base: base, count: count, used: map[uint32]bool{}, next: reservedUIDs}
}

// take returns a uid that no machine has. It goes round the range, so that a uid is not used again at once.
func (u *uidRange) take() (uint32, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for range u.count {
		slot := u.next
		u.next++
		if u.next >= u.count {
			u.next = reservedUIDs
		}
		if slot < u.count && !u.used[slot] {
			u.used[slot] = true
			return u.base + slot, nil
		}
	}
	return 0, &sandbox.Error{Code: sandbox.CodeCapacity, Message: "no uid is free for another machine",
		Cause: "the range of this installation is used up", Remedy: "delete a sandbox"}
}

// mark notes a uid that an adopted machine has.
func (u *uidRange) mark(uid uint32) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if uid >= u.base && uid-u.base < u.count {
		u.used[uid-u.base] = true
		if next := uid - u.base + 1; next > u.next && next < u.count {
			u.next = next
		}
	}
}

// free gives a uid back when nothing of its machine is left.
func (u *uidRange) free(uid uint32) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if uid >= u.base {
		delete(u.used, uid-u.base)
	}
}
