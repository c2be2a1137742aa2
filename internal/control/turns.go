package control

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/space-sandbox/space/internal/sandbox"
)

// turns lets a bounded number of operations work at once. The others wait: those of one owner in the order in which
// they were accepted, and the owners take turns, so that one who wants much does not hold up one who wants little.
// An operation joins in the transaction that accepts it, enters once it is in the record, and leaves when it has
// ended. Safe for concurrent use.
type turns struct {
	perOwner, all int // how many may wait

	mu      sync.Mutex
	free    int
	joined  int64 // so far
	waiting map[string]int
	tickets map[sandbox.OperationID]*ticket
	lines   map[string][]*ticket // of those that have entered and wait; never empty
	round   []string             // owners that have a line, next one first
}

// ticket is one operation's place.
type ticket struct {
	owner   string
	number  int64
	entered bool
	called  chan struct{} // closed when its turn has come
	at      bool          // its turn has come
}

func newTurns(slots, perOwner, all int) *turns {
	return &turns{perOwner: perOwner, all: all, free: slots, waiting: map[string]int{},
		tickets: map[sandbox.OperationID]*ticket{}, lines: map[string][]*ticket{}}
}

// retryQueue is when a client whose queue is full may come back.
const retryQueue = 2 * time.Second

// join keeps a place for an operation, unless too many wait already; each time for the same operation it is the same.
func (t *turns) join(op sandbox.OperationID, owner string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.tickets[op] != nil {
		return nil
	}
	all := 0
	for _, n := range t.waiting {
		all += n
	}
	e := &sandbox.Error{Code: sandbox.CodeCapacity, Message: "too many creates and recoveries wait for their turn; nothing happened",
		Remedy: "try again when some have ended", RetryAfter: retryQueue}
	switch {
	case t.free > 0 && len(t.lines) == 0: // it need not wait
	case t.waiting[owner] >= t.perOwner:
		e.Cause = fmt.Sprintf("%d of this key wait, which is as many as may", t.waiting[owner])
		return e
	case all >= t.all:
		e.Cause = fmt.Sprintf("%d wait, which is as many as may", all)
		return e
	}
	t.add(op, owner)
	return nil
}

func (t *turns) add(op sandbox.OperationID, owner string) *ticket {
	t.joined++
	k := &ticket{owner: owner, number: t.joined, called: make(chan struct{})}
	t.tickets[op] = k
	t.waiting[owner]++
	return k
}

// enter lets an operation that has joined wait from now on.
func (t *turns) enter(op sandbox.OperationID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if k := t.tickets[op]; k != nil {
		t.line(k)
	}
}

// admit joins and enters one that was accepted already, whatever the bounds.
func (t *turns) admit(op sandbox.OperationID, owner string) *ticket {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.tickets[op]
	if k == nil {
		k = t.add(op, owner)
	}
	t.line(k)
	return k
}

// line puts k into its owner's line; t.mu is held.
func (t *turns) line(k *ticket) {
	if k.entered {
		return
	}
	k.entered = true
	line := t.lines[k.owner]
	if len(line) == 0 {
		t.round = append(t.round, k.owner)
	}
	at, _ := slices.BinarySearchFunc(line, k.number, func(other *ticket, n int64) int { return cmp.Compare(other.number, n) })
	t.lines[k.owner] = slices.Insert(line, at, k)
	t.call()
}

// call hands out free slots; t.mu is held.
func (t *turns) call() {
	for t.free > 0 && len(t.round) > 0 {
		owner := t.round[0]
		t.round = t.round[1:]
		k := t.lines[owner][0]
		if rest := t.lines[owner][1:]; len(rest) > 0 {
			t.lines[owner] = rest
			t.round = append(t.round, owner)
		} else {
			delete(t.lines, owner)
		}
		t.free--
		t.goes(k)
		k.at = true
		close(k.called)
	}
}

// goes counts k as one that does not wait any more; t.mu is held.
func (t *turns) goes(k *ticket) {
	if t.waiting[k.owner]--; t.waiting[k.owner] == 0 {
		delete(t.waiting, k.owner)
	}
}

// wait returns when it is an operation's turn, or with the cause for which ctx has ended. Call leave in any case.
func (t *turns) wait(ctx context.Context, op sandbox.OperationID, owner string) error {
	select {
	case <-t.admit(op, owner).called:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// leave gives up an operation's place or slot; without one it does nothing.
func (t *turns) leave(op sandbox.OperationID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.tickets[op]
	if k == nil {
		return
	}
	delete(t.tickets, op)
	if k.at {
		t.free++
		t.call()
		return
	}
	t.goes(k)
	if !k.entered {
		return
	}
	line := slices.DeleteFunc(t.lines[k.owner], func(other *ticket) bool { return other == k })
	if t.lines[k.owner] = line; len(line) == 0 {
		delete(t.lines, k.owner)
		t.round = slices.DeleteFunc(t.round, func(owner string) bool { return owner == k.owner })
	}
}

// queued is how many have been accepted and wait.
func (t *turns) queued() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := 0
	for _, n := range t.waiting {
		all += n
	}
	return all
}
