package gateway

import (
	"container/list"
	"context"
	"sync"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	gatewayv1 "github.com/space-sandbox/space/api/proto/gateway/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

// board holds what the agents last said about their processes and feeds it to control's Watch streams. An agent never
// waits for a stream, and a stream that is not read costs one entry a process at most: it then gets the newest state.
type board struct {
	mu    sync.Mutex
	rooms map[sandbox.ID]*room
	feeds map[*feed]struct{}
}

// room is the state of one published sandbox's processes, from open to close.
type room struct {
	board *board
	id    sandbox.ID

	// Guarded by the board's lock.
	processes map[sandbox.ProcessID]*agentv1.Process
	synced    bool
	closed    bool
}

func newBoard() *board {
	return &board{rooms: map[sandbox.ID]*room{}, feeds: map[*feed]struct{}{}}
}

// open makes the room of a sandbox; an earlier one must have been closed.
func (b *board) open(id sandbox.ID) *room {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := &room{board: b, id: id, processes: map[sandbox.ProcessID]*agentv1.Process{}}
	b.rooms[id] = r
	return r
}

// close forgets the sandbox; later calls on the room change nothing.
func (r *room) close() {
	r.edit(func() {
		r.closed = true
		delete(r.board.rooms, r.id)
		r.board.forget(r.id)
	})
}

// begin forgets what is known of the processes: the whole state follows, then sync.
func (r *room) begin() {
	r.edit(func() {
		clear(r.processes)
		r.synced = false
		r.board.forget(r.id)
	})
}

// changed notes the newest state of one process.
func (r *room) changed(p *agentv1.Process) {
	id := sandbox.ProcessID(p.GetProcessId())
	r.edit(func() {
		r.processes[id] = p
		r.board.tell(note{sandbox: r.id, process: id})
	})
}

// drop forgets processes whose results are recorded.
func (r *room) drop(ids []sandbox.ProcessID) {
	r.edit(func() {
		for _, id := range ids {
			delete(r.processes, id)
			r.board.withdraw(note{sandbox: r.id, process: id})
		}
	})
}

// sync notes that the whole state is known.
func (r *room) sync() {
	r.edit(func() {
		r.synced = true
		r.board.tell(note{sandbox: r.id})
	})
}

func (r *room) edit(change func()) {
	r.board.mu.Lock()
	defer r.board.mu.Unlock()
	if !r.closed {
		change()
	}
}

func (b *board) tell(n note) {
	for f := range b.feeds {
		f.put(n)
	}
}

func (b *board) withdraw(n note) {
	for f := range b.feeds {
		if e, waiting := f.place[n]; waiting {
			f.queue.Remove(e)
			delete(f.place, n)
		}
	}
}

func (b *board) forget(id sandbox.ID) {
	for f := range b.feeds {
		f.forget(id)
	}
}

// subscribe opens a feed that begins with everything known. End it with unsubscribe.
func (b *board) subscribe() *feed {
	f := &feed{board: b, queue: list.New(), place: map[note]*list.Element{}, wake: make(chan struct{}, 1)}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.feeds[f] = struct{}{}
	for id, r := range b.rooms {
		for pid := range r.processes {
			f.put(note{sandbox: id, process: pid})
		}
		if r.synced {
			f.put(note{sandbox: id})
		}
	}
	return f
}

func (b *board) unsubscribe(f *feed) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.feeds, f)
}

// note says that something is to be told: the state of a process or, without one, that a sandbox is synced.
type note struct {
	sandbox sandbox.ID
	process sandbox.ProcessID
}

// feed is the queue of one Watch stream: each note at most once. Guarded by the board's lock.
type feed struct {
	board *board
	queue *list.List // of note
	place map[note]*list.Element
	wake  chan struct{}
}

// put queues n. A waiting process keeps its place, since its newest state is read when its turn comes; synced goes
// behind all that it covers.
func (f *feed) put(n note) {
	if e, waiting := f.place[n]; waiting {
		if n.process == "" {
			f.queue.MoveToBack(e)
		}
		return
	}
	f.place[n] = f.queue.PushBack(n)
	select {
	case f.wake <- struct{}{}:
	default: // a wake-up is pending already
	}
}

func (f *feed) forget(id sandbox.ID) {
	for n, e := range f.place {
		if n.sandbox == id {
			f.queue.Remove(e)
			delete(f.place, n)
		}
	}
}

// next waits for the next event. One goroutine calls it.
func (f *feed) next(ctx context.Context) (*gatewayv1.WatchResponse, error) {
	for {
		if res := f.pop(); res != nil {
			return res, nil
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-f.wake:
		}
	}
}

func (f *feed) pop() *gatewayv1.WatchResponse {
	f.board.mu.Lock()
	defer f.board.mu.Unlock()
	e := f.queue.Front()
	if e == nil {
		return nil
	}
	n, _ := f.queue.Remove(e).(note)
	delete(f.place, n)
	if n.process == "" {
		return &gatewayv1.WatchResponse{Event: &gatewayv1.WatchResponse_Synced_{Synced: &gatewayv1.WatchResponse_Synced{SandboxId: string(n.sandbox)}}}
	}
	// Whoever removes a process or its room from the board takes its notes out of every feed too.
	p := f.board.rooms[n.sandbox].processes[n.process]
	return &gatewayv1.WatchResponse{Event: &gatewayv1.WatchResponse_Process{
		Process: &gatewayv1.WatchResponse_ProcessChanged{SandboxId: string(n.sandbox), Process: p}}}
}
