package control

import "sync"

// notifier wakes those who wait for a change of a record.
type notifier struct {
	mu    sync.Mutex
	rooms map[string]*waitingRoom
}

type waitingRoom struct {
	changed chan struct{} // closed by notify
	users   int
}

func newNotifier() *notifier { return &notifier{rooms: map[string]*waitingRoom{}} }

// subscribe returns a channel that is closed at the next notify of key. Subscribe before reading the record, so that
// no change falls between. release must be called.
func (n *notifier) subscribe(key string) (changed <-chan struct{}, release func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	room := n.rooms[key]
	if room == nil {
		room = &waitingRoom{changed: make(chan struct{})}
		n.rooms[key] = room
	}
	room.users++
	return room.changed, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if room.users--; room.users == 0 && n.rooms[key] == room {
			delete(n.rooms, key)
		}
	}
}

func (n *notifier) notify(keys ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, key := range keys {
		if room := n.rooms[key]; room != nil {
			close(room.changed)
			delete(n.rooms, key)
		}
	}
}
