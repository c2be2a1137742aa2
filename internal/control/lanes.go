package control

import "sync"

// lanes runs functions one after another for each key, and those of different keys at once. A lane exists while it has
// work; a sandbox at rest costs nothing.
type lanes struct {
	mu     sync.Mutex
	queues map[string][]func() // the function at work is not in it
	closed bool
	wg     sync.WaitGroup
}

func newLanes() *lanes { return &lanes{queues: map[string][]func(){}} }

// do runs fn behind what the lane has; after close it does nothing and says so.
func (l *lanes) do(key string, fn func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	queue, busy := l.queues[key]
	l.queues[key] = append(queue, fn)
	if !busy {
		l.wg.Go(func() { l.work(key) })
	}
	return true
}

func (l *lanes) work(key string) {
	for {
		fn := l.next(key)
		if fn == nil {
			return
		}
		fn()
	}
}

func (l *lanes) next(key string) func() {
	l.mu.Lock()
	defer l.mu.Unlock()
	queue := l.queues[key]
	if len(queue) == 0 {
		delete(l.queues, key)
		return nil
	}
	fn := queue[0]
	queue[0] = nil // let go of what it holds
	l.queues[key] = queue[1:]
	return fn
}

// close refuses new work and waits for what is queued, which is expected to end soon since its context has ended.
func (l *lanes) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.wg.Wait()
}
