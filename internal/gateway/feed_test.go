package gateway

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

func state(id sandbox.ProcessID, stdout uint64) *agentv1.Process {
	return &agentv1.Process{ProcessId: string(id), StdoutBytes: stdout}
}

// drain takes everything that waits in a feed, as text.
func drain(f *feed) []string {
	var got []string
	for res := f.pop(); res != nil; res = f.pop() {
		if s := res.GetSynced(); s != nil {
			got = append(got, s.GetSandboxId()+" synced")
			continue
		}
		p := res.GetProcess()
		got = append(got, fmt.Sprintf("%s %s %d", p.GetSandboxId(), p.GetProcess().GetProcessId(), p.GetProcess().GetStdoutBytes()))
	}
	return got
}

// TestSlowFeedGetsTheNewestState: a thousand changes while nobody reads are one event, and synced stays behind it.
func TestSlowFeedGetsTheNewestState(t *testing.T) {
	t.Parallel()
	b := newBoard()
	f := b.subscribe()
	r := b.open("box")
	r.begin()
	r.changed(state("p1", 0))
	r.sync()
	for i := range uint64(1000) {
		r.changed(state("p1", i))
		r.changed(state("p2", i))
	}
	if diff := cmp.Diff([]string{"box p1 999", "box synced", "box p2 999"}, drain(f)); diff != "" {
		t.Error(diff)
	}
	r.begin() // the agent is watched anew
	r.changed(state("p2", 1000))
	r.sync()
	r.changed(state("p1", 7))
	r.sync()
	if diff := cmp.Diff([]string{"box p2 1000", "box p1 7", "box synced"}, drain(f)); diff != "" {
		t.Error(diff)
	}
}

func TestLateFeedBeginsWithEverything(t *testing.T) {
	t.Parallel()
	b := newBoard()
	r, other := b.open("box"), b.open("other")
	r.changed(state("p1", 5))
	r.sync()
	other.changed(state("p2", 1))
	other.close()
	other.changed(state("p2", 2)) // its watcher may be late
	f := b.subscribe()
	if diff := cmp.Diff([]string{"box p1 5", "box synced"}, drain(f)); diff != "" {
		t.Error(diff)
	}
	b.unsubscribe(f)
	r.changed(state("p1", 6))
	if got := drain(f); got != nil {
		t.Errorf("an ended feed got %v", got)
	}
}

func TestFeedWaits(t *testing.T) {
	t.Parallel()
	b := newBoard()
	f := b.subscribe()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	r := b.open("box")
	go r.changed(state("p1", 1))
	if res, err := f.next(ctx); err != nil || res.GetProcess().GetProcess().GetStdoutBytes() != 1 {
		t.Errorf("got %v, %v", res, err)
	}
	cancel()
	if res, err := f.next(ctx); err == nil {
		t.Errorf("got %v after the end", res)
	}
}

// TestFeedModel: whatever happens, a reader ends with the state that the board has, and hears of synced only after all
// processes that it covers.
func TestFeedModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b := newBoard()
		m := &feedModel{board: b, feed: b.subscribe(), rooms: map[sandbox.ID]*room{}, seen: map[sandbox.ID]*view{},
			covered: map[sandbox.ID][]sandbox.ProcessID{}}
		t.Repeat(rapid.StateMachineActions(m))
		for m.feed.queue.Len() > 0 {
			m.Read(t)
		}
		for id, r := range m.rooms {
			v := m.view(id)
			for pid, p := range r.processes {
				if v.processes[pid] != p.GetStdoutBytes() {
					t.Fatalf("%s %s is at %d, told %d", id, pid, p.GetStdoutBytes(), v.processes[pid])
				}
			}
			if r.synced != v.synced {
				t.Fatalf("%s: synced is %v, told %v", id, r.synced, v.synced)
			}
		}
	})
}

// feedModel is a board with one feed, and what its reader knows.
type feedModel struct {
	board   *board
	feed    *feed
	rooms   map[sandbox.ID]*room
	seen    map[sandbox.ID]*view
	covered map[sandbox.ID][]sandbox.ProcessID // known at the last sync
	counter uint64
}

// view is what a reader knows of a sandbox.
type view struct {
	synced    bool
	processes map[sandbox.ProcessID]uint64
}

func (m *feedModel) view(id sandbox.ID) *view {
	if m.seen[id] == nil {
		m.seen[id] = &view{processes: map[sandbox.ProcessID]uint64{}}
	}
	return m.seen[id]
}

func (m *feedModel) draw(t *rapid.T) (sandbox.ID, *room) {
	id := rapid.SampledFrom([]sandbox.ID{"a", "b"}).Draw(t, "box")
	return id, m.rooms[id]
}

func (m *feedModel) Open(t *rapid.T) {
	if id, r := m.draw(t); r == nil {
		m.rooms[id] = m.board.open(id)
	}
}

func (m *feedModel) Close(t *rapid.T) {
	if id, r := m.draw(t); r != nil {
		r.close()
		delete(m.rooms, id)
		delete(m.seen, id)
	}
}

func (m *feedModel) Begin(t *rapid.T) {
	if id, r := m.draw(t); r != nil {
		r.begin()
		delete(m.seen, id) // what was told before does not count any more
	}
}

func (m *feedModel) Change(t *rapid.T) {
	if _, r := m.draw(t); r != nil {
		m.counter++
		r.changed(state(rapid.SampledFrom([]sandbox.ProcessID{"p", "q", "r"}).Draw(t, "process"), m.counter))
	}
}

// Drop is what an ack of control does.
func (m *feedModel) Drop(t *rapid.T) {
	if id, r := m.draw(t); r != nil {
		pid := rapid.SampledFrom([]sandbox.ProcessID{"p", "q", "r"}).Draw(t, "process")
		r.drop([]sandbox.ProcessID{pid, "unknown"})
		m.covered[id] = slices.DeleteFunc(m.covered[id], func(covered sandbox.ProcessID) bool { return covered == pid })
	}
}

func (m *feedModel) Sync(t *rapid.T) {
	if id, r := m.draw(t); r != nil {
		r.sync()
		m.covered[id] = slices.Collect(maps.Keys(r.processes))
	}
}

func (m *feedModel) Read(t *rapid.T) {
	res := m.feed.pop()
	if res == nil {
		return
	}
	id := sandbox.ID(res.GetProcess().GetSandboxId() + res.GetSynced().GetSandboxId())
	if m.rooms[id] == nil {
		t.Fatalf("told about %s, which is closed", id)
	}
	v := m.view(id)
	if p := res.GetProcess().GetProcess(); p != nil {
		v.processes[sandbox.ProcessID(p.GetProcessId())] = p.GetStdoutBytes()
		return
	}
	v.synced = true
	for _, pid := range m.covered[id] {
		if _, told := v.processes[pid]; !told {
			t.Fatalf("synced before %s", pid)
		}
	}
}

func (m *feedModel) Check(t *rapid.T) {
	if n := m.feed.queue.Len(); n > 8 || n != len(m.feed.place) {
		t.Fatalf("%d notes wait, %d have a place", n, len(m.feed.place))
	}
}
