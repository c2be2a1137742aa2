package node

import (
	"maps"
	"sync"

	"github.com/space-sandbox/space/internal/sandbox"
)

// reservedUIDs at the start of an installation's range are for workers (image import and the like), not machines.
const reservedUIDs = 64

// uidRange gives each machine a uid of its own. Safe for concurrent use.
type uidRange struct {
	base, count uint32

	mu   sync.Mutex
	used map[uint32]string // by slot: who has it
	next uint32
}

func newUIDRange(base, count uint32) *uidRange {
	return &uidRange{base: base, count: count, used: map[uint32]string{}, next: reservedUIDs}
}

// take returns a uid that no machine has, for one machine. It goes round the range, so that a uid is not used again at once.
func (u *uidRange) take(id sandbox.ID) (uint32, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for range u.count {
		slot := u.next
		u.next++
		if u.next >= u.count {
			u.next = reservedUIDs
		}
		if _, used := u.used[slot]; slot < u.count && !used {
			u.used[slot] = string(id)
			return u.base + slot, nil
		}
	}
	return 0, &sandbox.Error{Code: sandbox.CodeCapacity, Message: "no uid is free for another machine",
		Cause: "the range of this installation is used up", Remedy: "delete a sandbox"}
}

// most is how many machines there can be at once.
func (u *uidRange) most() uint32 { return u.count - min(u.count, reservedUIDs) }

// mark notes a uid that an adopted machine has.
func (u *uidRange) mark(uid uint32, id sandbox.ID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if uid >= u.base && uid-u.base < u.count {
		u.used[uid-u.base] = string(id)
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

// freeOf gives back every uid of a machine of which nothing is left.
func (u *uidRange) freeOf(id sandbox.ID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	maps.DeleteFunc(u.used, func(_ uint32, owner string) bool { return owner == string(id) })
}

// owners lists the uids that machines have.
func (u *uidRange) owners() map[uint32]string {
	u.mu.Lock()
	defer u.mu.Unlock()
	all := make(map[uint32]string, len(u.used))
	for slot, owner := range u.used {
		if owner != "" { // else it is only claimed
			all[u.base+slot] = owner
		}
	}
	return all
}

// claim keeps a free uid of the range from being taken until release.
func (u *uidRange) claim(uid uint32) (release func(), ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	slot := uid - u.base
	if _, used := u.used[slot]; used || uid < u.base || slot >= u.count {
		return nil, false
	}
	u.used[slot] = ""
	return func() { u.free(uid) }, true
}
