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
		f := b.subscribe()
		rooms := map[sandbox.ID]*room{}
		type view struct {
			synced    bool
			processes map[string]uint64
		}
		seen := map[string]*view{}
		covered := map[string][]sandbox.ProcessID{} // known at the last sync
		read := func() {
			res := f.pop()
			if res == nil {
				return
			}
			id := res.GetProcess().GetSandboxId() + res.GetSynced().GetSandboxId()
			if rooms[sandbox.ID(id)] == nil {
				t.Fatalf("told about %s, which is closed", id)
			}
			if seen[id] == nil {
				seen[id] = &view{processes: map[string]uint64{}}
			}
			if p := res.GetProcess().GetProcess(); p != nil {
				seen[id].processes[p.GetProcessId()] = p.GetStdoutBytes()
			} else {
				seen[id].synced = true
				for _, pid := range covered[id] {
					if _, told := seen[id].processes[string(pid)]; !told {
						t.Fatalf("synced before %s", pid)
					}
				}
			}
		}
		counter := uint64(0)
		box := rapid.SampledFrom([]sandbox.ID{"a", "b"})
		proc := rapid.SampledFrom([]sandbox.ProcessID{"p", "q", "r"})
		t.Repeat(map[string]func(*rapid.T){
			"open": func(t *rapid.T) {
				if id := box.Draw(t, "box"); rooms[id] == nil {
					rooms[id] = b.open(id)
				}
			},
			"close": func(t *rapid.T) {
				if id := box.Draw(t, "box"); rooms[id] != nil {
					rooms[id].close()
					delete(rooms, id)
					delete(seen, string(id))
				}
			},
			"begin": func(t *rapid.T) {
				if id := box.Draw(t, "box"); rooms[id] != nil {
					rooms[id].begin()
					delete(seen, string(id)) // what was told before does not count any more
				}
			},
			"change": func(t *rapid.T) {
				if r := rooms[box.Draw(t, "box")]; r != nil {
					counter++
					r.changed(state(proc.Draw(t, "process"), counter))
				}
			},
			"sync": func(t *rapid.T) {
				if r := rooms[box.Draw(t, "box")]; r != nil {
					r.sync()
					covered[string(r.id)] = slices.Collect(maps.Keys(r.processes))
				}
			},
			"read": func(*rapid.T) { read() },
			"": func(t *rapid.T) {
				if n := f.queue.Len(); n > 8 || n != len(f.place) {
					t.Fatalf("%d notes wait, %d have a place", n, len(f.place))
				}
			},
		})
		for f.queue.Len() > 0 {
			read()
		}
		for id, r := range rooms {
			for pid, p := range r.processes {
				if v := seen[string(id)]; v == nil || v.processes[string(pid)] != p.GetStdoutBytes() {
					t.Fatalf("%s %s is at %d, told %v", id, pid, p.GetStdoutBytes(), v)
				}
			}
			if r.synced != (seen[string(id)] != nil && seen[string(id)].synced) {
				t.Fatalf("%s: synced is %v, told %v", id, r.synced, seen[string(id)])
			}
		}
	})
}
