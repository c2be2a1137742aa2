package control

import (
	"context"
	"fmt"
	"sync"
	"time"

	nodev1 "github.com/space-sandbox/space/api/proto/node/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

// startBytes is what one create or recovery may write to the pool itself.
const startBytes = 64 << 20

// How old control's picture of the pool may be; and how old when it says that there is no room.
const (
	poolAge      = 200 * time.Millisecond
	poolAgeShort = 10 * time.Millisecond
)

// When clients may come back that have found no room: rooms come free when somebody deletes something.
const retryRoom = 5 * time.Second

// budget is what operations under way have reserved and the record does not say: bytes of the pool, memory of
// recoveries that have not begun, and the number of sandboxes. What has been reserved stays so until the operation has
// ended; what it has written by then counts twice until node has looked at the pool again, never not at all. Safe for
// concurrent use.
type budget struct {
	looking chan struct{} // of capacity 1: full while node is asked

	mu     sync.Mutex
	held   map[sandbox.OperationID]reservation
	bytes  int64 // of all in held
	memory int64 // MiB of all in held
	ended  int64 // bytes of all operations that have ended
	seen   int64 // of those, what node has seen when it looked last
	places map[sandbox.ID]struct{}

	at          time.Time // when node was asked last; zero: never
	err         error     // what it answered then
	total, free int64     // of the pool; total 0: there is none
	reserve     int64     // that node keeps
	maxPlaces   int       // 0: no limit
}

// reservation is one operation's part.
type reservation struct {
	bytes     int64
	memoryMiB int64
	place     sandbox.ID // of a create
}

func newBudget(live []sandbox.Sandbox) *budget {
	b := &budget{looking: make(chan struct{}, 1), held: map[sandbox.OperationID]reservation{}, places: map[sandbox.ID]struct{}{}}
	for _, box := range live {
		b.places[box.ID] = struct{}{}
	}
	return b
}

// look has node asked when what is known of the pool is old, or says that there is no room. ask calls learn.
func (b *budget) look(ctx context.Context, ask func(context.Context) error) error {
	if fresh, err := b.known(); fresh {
		return err
	}
	select {
	case b.looking <- struct{}{}:
		defer func() { <-b.looking }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if fresh, err := b.known(); fresh { // somebody else has asked meanwhile
		return err
	}
	return ask(ctx)
}

// doubt has node asked again before anything else is accepted: the pool has become full of late.
func (b *budget) doubt() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.at = time.Time{}
}

// known reports whether node need not be asked, and what its last answer was.
func (b *budget) known() (bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	age := poolAge
	if b.err == nil && b.room() < startBytes {
		age = poolAgeShort
	}
	return !b.at.IsZero() && time.Since(b.at) < age, b.err
}

// room is what nobody has reserved; b.mu is held.
func (b *budget) room() int64 {
	if b.total == 0 {
		return 1 << 62
	}
	return b.free - b.reserve - b.bytes - (b.ended - b.seen)
}

// written is what all operations that have ended may have written.
func (b *budget) written() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ended
}

// learn takes node's answer, unless a later one was there first. seen is what written was before node was asked: the
// answer counts it.
func (b *budget) learn(res *nodev1.GetNodeResponse, err error, seen int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if seen < b.seen {
		return
	}
	b.at, b.err = time.Now(), err
	if err != nil {
		return
	}
	b.seen = seen
	p := res.GetPool()
	b.total, b.free, b.reserve = int64(p.GetTotalBytes()), int64(p.GetFreeBytes()), int64(p.GetReserveBytes())
	b.maxPlaces = int(res.GetMaxMachines())
}

// take reserves r for op, or says what there is not enough of. Asked again for the same operation it begins anew.
func (b *budget) take(op sandbox.OperationID, r reservation, maxPlaces int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.put(op)
	if b.err != nil {
		return b.err
	}
	maxPlaces = b.lowest(maxPlaces)
	if r.place != "" && maxPlaces > 0 && len(b.places) >= maxPlaces {
		return &sandbox.Error{Code: sandbox.CodeCapacity, Message: "there are as many sandboxes as there may be; nothing happened",
			Cause: fmt.Sprintf("%d of %d, failed ones included", len(b.places), maxPlaces), Remedy: "delete sandboxes", RetryAfter: retryRoom}
	}
	if room := b.room(); room < r.bytes {
		return &sandbox.Error{Code: sandbox.CodeCapacity, Message: "the pool has no room for another sandbox; nothing happened",
			Cause: fmt.Sprintf("%d MiB of the pool are free; %d are kept in reserve, %d are reserved by creates under way, and this one may write %d",
				b.free>>20, b.reserve>>20, (b.bytes+b.ended-b.seen)>>20, r.bytes>>20),
			Remedy: "delete sandboxes or templates, or give the pool more space", RetryAfter: retryRoom}
	}
	b.hold(op, r)
	return nil
}

// lowest is how many sandboxes there may be: node's limit, or the one of control if that is lower; b.mu is held.
func (b *budget) lowest(limit int) int {
	if b.maxPlaces > 0 && (limit == 0 || b.maxPlaces < limit) {
		return b.maxPlaces
	}
	return limit
}

// most is how many sandboxes there may be; 0: no limit.
func (b *budget) most(limit int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lowest(limit)
}

// adopt reserves r for an operation that was accepted by an earlier process.
func (b *budget) adopt(op sandbox.OperationID, r reservation) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.put(op)
	b.hold(op, r)
}

// hold adds r; b.mu is held.
func (b *budget) hold(op sandbox.OperationID, r reservation) {
	b.held[op] = r
	b.bytes += r.bytes
	b.memory += r.memoryMiB
	if r.place != "" {
		b.places[r.place] = struct{}{}
	}
}

// put takes back what op has, as if it had never been; b.mu is held.
func (b *budget) put(op sandbox.OperationID) {
	r := b.forget(op)
	if r.place != "" {
		delete(b.places, r.place)
	}
}

// forget takes op's reservation away, without its place; b.mu is held.
func (b *budget) forget(op sandbox.OperationID) reservation {
	r := b.held[op]
	delete(b.held, op)
	b.bytes -= r.bytes
	b.memory -= r.memoryMiB
	return r
}

// refuse takes back what an operation has reserved that was not accepted.
func (b *budget) refuse(op sandbox.OperationID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.put(op)
}

// end gives back what an operation has reserved that has ended.
func (b *budget) end(op sandbox.OperationID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended += b.forget(op).bytes
}

// recorded gives back op's memory: the record has it now.
func (b *budget) recorded(op sandbox.OperationID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r, ok := b.held[op]; ok {
		b.memory -= r.memoryMiB
		r.memoryMiB = 0
		b.held[op] = r
	}
}

// has reports whether op has reserved what it needs.
func (b *budget) has(op sandbox.OperationID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, ok := b.held[op]
	return ok
}

// pending is the memory in MiB that is reserved and not in the record.
func (b *budget) pending() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.memory
}

// deleted gives back the place of a sandbox that is gone.
func (b *budget) deleted(id sandbox.ID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.places, id)
}
