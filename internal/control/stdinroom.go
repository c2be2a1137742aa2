package control

import (
	"fmt"
	"sync"

	"github.com/space-sandbox/space/internal/sandbox"
)

// Bounds on the standard input of execs that waits to be read: it stays in memory until the command reads it or ends,
// also when the caller has gone.
const (
	maxStdin        = 256 << 20
	maxStdinSandbox = 16 << 20 // so that one sandbox whose commands do not read leaves room for the others
)

// stdinRoom counts what waits. Safe for concurrent use.
type stdinRoom struct {
	mu    sync.Mutex
	total int
	boxes map[sandbox.ID]int
}

func newStdinRoom() *stdinRoom { return &stdinRoom{boxes: map[sandbox.ID]int{}} }

// take reserves n bytes until the returned function is called; it may be called again.
func (r *stdinRoom) take(id sandbox.ID, n int) (giveBack func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.total+n > maxStdin || r.boxes[id]+n > maxStdinSandbox {
		return nil, &sandbox.Error{Code: sandbox.CodeCapacity, Message: "too much standard input waits to be read by commands; nothing happened",
			Cause:  fmt.Sprintf("%d bytes of this sandbox, %d of all; at most %d and %d", r.boxes[id], r.total, maxStdinSandbox, maxStdin),
			Remedy: "try again when those commands have read or ended, or send it by POST /v1/commands/{id}/stdin"}
	}
	r.total += n
	r.boxes[id] += n
	return sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.total -= n
		if r.boxes[id] -= n; r.boxes[id] <= 0 {
			delete(r.boxes, id)
		}
	}), nil
}
