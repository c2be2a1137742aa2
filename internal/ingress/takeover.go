package ingress

import (
	"context"
	"errors"
	"sync"

	"github.com/space-sandbox/space/internal/sandbox"
)

// errTakenOver is the cause of an attachment's end when another client has asked for the session alone.
var errTakenOver = errors.New("another client took the session over")

// crowd knows who is attached to which session.
type crowd struct {
	mu      sync.Mutex
	next    uint64
	members map[sandbox.CommandID]map[uint64]context.CancelCauseFunc
}

func newCrowd() *crowd {
	return &crowd{members: map[sandbox.CommandID]map[uint64]context.CancelCauseFunc{}}
}

// join adds an attachment, which end ends, and with takeover ends all others of the session. leave must be called once.
func (c *crowd) join(s Session, takeover bool, end context.CancelCauseFunc) (leave func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.members[s.CommandID]
	if all == nil {
		all = map[uint64]context.CancelCauseFunc{}
		c.members[s.CommandID] = all
	}
	if takeover {
		for _, endOther := range all {
			endOther(errTakenOver)
		}
	}
	c.next++
	me := c.next
	all[me] = end
	return func() { c.leave(s.CommandID, me) }
}

func (c *crowd) leave(id sandbox.CommandID, member uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.members[id], member)
	if len(c.members[id]) == 0 {
		delete(c.members, id)
	}
}
