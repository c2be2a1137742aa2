package ingress

import (
	"fmt"
	"sync"

	"github.com/space-sandbox/space/internal/sandbox"
)

// slots counts open attachments.
type slots struct {
	perSandbox, total int

	mu   sync.Mutex
	none *sync.Cond // all has become 0
	open map[sandbox.ID]int
	all  int
}

func newSlots(perSandbox, total int) *slots {
	s := &slots{perSandbox: perSandbox, total: total, open: map[sandbox.ID]int{}}
	s.none = sync.NewCond(&s.mu)
	return s
}

// take counts one more attachment, or says why there cannot be one. release must be called once.
func (s *slots) take(id sandbox.ID) (release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[id] >= s.perSandbox || s.all >= s.total {
		return nil, &sandbox.Error{Code: sandbox.CodeCapacity, Message: "too many open attachments",
			Cause:  fmt.Sprintf("%d of %d in this sandbox, %d of %d in all", s.open[id], s.perSandbox, s.all, s.total),
			Remedy: "close one and try again"}
	}
	s.open[id]++
	s.all++
	return func() { s.release(id) }, nil
}

func (s *slots) release(id sandbox.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all--; s.all == 0 {
		s.none.Broadcast()
	}
	if s.open[id]--; s.open[id] == 0 {
		delete(s.open, id)
	}
}

// wait returns when nothing is open.
func (s *slots) wait() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.all > 0 {
		s.none.Wait()
	}
}
