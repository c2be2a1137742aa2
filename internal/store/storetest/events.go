package storetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
)

func leases(t *testing.T, s store.Store) {
	ending := func(limit int) (out []sandbox.ID) {
		t.Helper()
		for _, b := range must[[]sandbox.Sandbox](t)(s.EndingLeases(t.Context(), limit)) {
			out = append(out, b.ID)
		}
		return out
	}
	none, late, soon, still := box(""), box(""), box(""), box("")
	late.Lease = &sandbox.Lease{TTL: time.Hour, OnExpiry: sandbox.ExpireDelete, ExpiresAt: epoch().Add(time.Hour)}
	soon.Lease = &sandbox.Lease{TTL: time.Hour, OnExpiry: sandbox.ExpireDelete, ExpiresAt: epoch()}
	still.Lease = &sandbox.Lease{TTL: time.Hour, OnExpiry: sandbox.ExpireDelete, Remaining: time.Second}
	if got := ending(9); len(got) != 0 {
		t.Errorf("an empty store: %v", got)
	}
	insert(t, s, none, late, soon, still)
	if got, want := ending(9), []sandbox.ID{soon.ID, late.ID}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got, want := ending(1), []sandbox.ID{soon.ID}; !slices.Equal(got, want) {
		t.Errorf("the first: got %v, want %v", got, want)
	}
	soon.Revision, soon.Lease.ExpiresAt, soon.Lease.Remaining = 1, time.Time{}, time.Minute
	still.Revision, still.Lease.ExpiresAt, still.Lease.Remaining = 1, epoch(), 0
	late.Revision, late.Lease = 1, nil
	update(t, s, func(tx store.Tx) error {
		for _, b := range []sandbox.Sandbox{soon, still, late} {
			if _, err := tx.UpdateSandbox(b); err != nil {
				return err
			}
		}
		if got, err := tx.EndingLeases(t.Context(), 9); err != nil || len(got) != 1 {
			return fmt.Errorf("inside the update: %d leases, %w", len(got), err)
		}
		return nil
	})
	if got, want := ending(9), []sandbox.ID{still.ID}; !slices.Equal(got, want) {
		t.Errorf("after the update: got %v, want %v", got, want)
	}
	passed := boxIn(t.Context(), t, s, still.ID)
	passed.Lease.TTL = time.Minute
	if again := boxIn(t.Context(), t, s, still.ID); again.Lease.TTL != time.Hour {
		t.Error("changing what was returned changed the record")
	}
}

// event makes an event; n tells it from others.
func event(kind store.EventType, id sandbox.ID, n int) store.Event {
	return store.Event{Time: epoch().Add(time.Duration(n) * time.Second), Type: kind, SandboxID: id,
		Object: json.RawMessage(`{"n":` + strconv.Itoa(n) + `}`)}
}

func appendEvents(t *testing.T, s store.Store, list ...store.Event) {
	t.Helper()
	update(t, s, func(tx store.Tx) error {
		for _, e := range list {
			if err := tx.AppendEvent(e); err != nil {
				return err
			}
		}
		return nil
	})
}

func page(t *testing.T, r store.Reader, after int64, f store.EventFilter, limit int) store.EventPage {
	t.Helper()
	return must[store.EventPage](t)(r.Events(t.Context(), after, f, limit))
}

func events(t *testing.T, s store.Store) {
	if got, want := page(t, s, 0, store.EventFilter{}, 10), (store.EventPage{Oldest: 1}); !cmp.Equal(got, want) {
		t.Errorf("an empty log: %+v, want %+v", got, want)
	}
	id := sandbox.NewID()
	want := []store.Event{event(store.EventSandbox, id, 0), event(store.EventTemplate, "", 1)}
	want[0].OperationID = sandbox.NewOperationID()
	want[0].Object = json.RawMessage(`{"x":"ü\u0000<>"}`)
	appendEvents(t, s, want...)
	want[0].Seq, want[1].Seq = 1, 2
	if d := cmp.Diff(store.EventPage{Events: want, Next: 2, Oldest: 1, Newest: 2}, page(t, s, 0, store.EventFilter{}, 10)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if d := cmp.Diff(store.EventPage{Events: want[1:], Next: 2, Oldest: 1, Newest: 2}, page(t, s, 1, store.EventFilter{}, 10)); d != "" {
		t.Errorf("after the first (-want +got):\n%s", d)
	}
	for _, after := range []int64{2, 3, 1 << 62} {
		if d := cmp.Diff(store.EventPage{Next: after, Oldest: 1, Newest: 2}, page(t, s, after, store.EventFilter{}, 10)); d != "" {
			t.Errorf("after %d (-want +got):\n%s", after, d)
		}
	}
	errMine := errors.New("mine")
	err := s.Update(t.Context(), func(tx store.Tx) error {
		return errors.Join(tx.AppendEvent(event(store.EventLease, id, 9)), errMine)
	})
	if got := page(t, s, 0, store.EventFilter{}, 10); !errors.Is(err, errMine) || len(got.Events) != 2 || got.Newest != 2 {
		t.Errorf("after an update that failed: %v, %+v", err, got)
	}
	update(t, s, func(tx store.Tx) error {
		if err := tx.AppendEvent(event(store.EventLease, id, 2)); err != nil {
			return err
		}
		if got := page(t, tx, 2, store.EventFilter{}, 10); len(got.Events) != 1 || got.Events[0].Seq != 3 {
			return fmt.Errorf("an update does not read its own event: %+v", got)
		}
		return nil
	})
	for _, limit := range []int{0, -1, store.MaxEvents + 1} {
		if _, err := s.Events(t.Context(), 0, store.EventFilter{}, limit); err == nil {
			t.Errorf("limit %d is accepted", limit)
		}
	}
}

func eventFilters(t *testing.T, s store.Store) {
	one, two := sandbox.NewID(), sandbox.NewID()
	var list []store.Event
	for i, kind := range []store.EventType{store.EventSandbox, store.EventOperation, store.EventCommand, store.EventLease} {
		list = append(list, event(kind, one, i), event(kind, two, i))
	}
	appendEvents(t, s, list...)
	seqs := func(f store.EventFilter, after int64, limit int) (out []int64, next int64) {
		p := page(t, s, after, f, limit)
		for _, e := range p.Events {
			out = append(out, e.Seq)
		}
		return out, p.Next
	}
	for _, c := range []struct {
		filter store.EventFilter
		after  int64
		limit  int
		want   []int64
		next   int64
	}{
		{store.EventFilter{SandboxID: one}, 0, 10, []int64{1, 3, 5, 7}, 8},
		{store.EventFilter{SandboxID: two}, 4, 10, []int64{6, 8}, 8},
		{store.EventFilter{SandboxID: two}, 0, 2, []int64{2, 4}, 4},
		{store.EventFilter{Types: []store.EventType{store.EventLease, store.EventSandbox}}, 0, 10, []int64{1, 2, 7, 8}, 8},
		{store.EventFilter{SandboxID: one, Types: []store.EventType{store.EventCommand}}, 0, 10, []int64{5}, 8},
		{store.EventFilter{SandboxID: sandbox.NewID()}, 0, 10, nil, 8},
		{store.EventFilter{Types: []store.EventType{store.EventTemplate}}, 3, 10, nil, 8},
	} {
		if got, next := seqs(c.filter, c.after, c.limit); !slices.Equal(got, c.want) || next != c.next {
			t.Errorf("%+v after %d: %v and on at %d, want %v and %d", c.filter, c.after, got, next, c.want, c.next)
		}
	}
}

// eventBounds: a look-up goes through a bounded part of the log, and says where to go on.
func eventBounds(t *testing.T, s store.Store) {
	id := sandbox.NewID()
	list := make([]store.Event, 0, store.MaxEventScan+2)
	for i := range store.MaxEventScan {
		list = append(list, event(store.EventCommand, "", i))
	}
	list = append(list, event(store.EventSandbox, id, 1), event(store.EventCommand, "", 1))
	appendEvents(t, s, list...)
	f := store.EventFilter{SandboxID: id}
	if got := page(t, s, 0, f, 10); len(got.Events) != 0 || got.Next != store.MaxEventScan {
		t.Errorf("the first part: %d events, on at %d", len(got.Events), got.Next)
	}
	if got := page(t, s, store.MaxEventScan, f, 10); len(got.Events) != 1 || got.Next != got.Newest {
		t.Errorf("the second part: %d events, on at %d", len(got.Events), got.Next)
	}
	if got := page(t, s, 0, store.EventFilter{}, store.MaxEvents); len(got.Events) != store.MaxEvents || got.Next != store.MaxEvents {
		t.Errorf("without a filter: %d events, on at %d", len(got.Events), got.Next)
	}
}

func purgeEvents(t *testing.T, s store.Store) {
	purged := func(before time.Time, keep, limit int64) (n int64) {
		t.Helper()
		update(t, s, func(tx store.Tx) (err error) { n, err = tx.PurgeEvents(before, keep, limit); return err })
		return n
	}
	const many = 1000
	if n := purged(epoch(), many, many); n != 0 {
		t.Errorf("an empty log: %d", n)
	}
	var list []store.Event
	for i := range 10 {
		list = append(list, event(store.EventCommand, "", i))
	}
	list[7].Time = epoch() // the clock went back; it stays behind its elders
	appendEvents(t, s, list...)
	for _, c := range []struct {
		name        string
		before      time.Time
		keep, limit int64
		gone, first int64
	}{
		{"nothing is old", epoch(), many, many, 0, 1},
		{"two are old", epoch().Add(2 * time.Second), many, many, 2, 3},
		{"a limit", epoch().Add(time.Hour), many, 1, 1, 4},
		{"too many", epoch(), 5, many, 2, 6},
		{"too many, with a limit", epoch(), 1, 2, 2, 8},
		{"an old one behind those that are too many", epoch().Add(time.Second), 3, many, 1, 9},
	} {
		n := purged(c.before, c.keep, c.limit)
		got := page(t, s, 0, store.EventFilter{}, 100)
		if n != c.gone || got.Oldest != c.first || got.Newest != 10 || len(got.Events) != int(11-c.first) {
			t.Errorf("%s: %d went and %d to %d (%d) are there, want %d to go and %d to be the first", c.name, n,
				got.Oldest, got.Newest, len(got.Events), c.gone, c.first)
		}
	}
	purged(epoch().Add(time.Hour), many, many)
	if got, want := page(t, s, 0, store.EventFilter{}, 10), (store.EventPage{Next: 10, Oldest: 11, Newest: 10}); !cmp.Equal(got, want) {
		t.Errorf("after all: %+v, want %+v", got, want)
	}
	appendEvents(t, s, event(store.EventCommand, "", 1))
	if got := page(t, s, 0, store.EventFilter{}, 10); len(got.Events) != 1 || got.Events[0].Seq != 11 {
		t.Errorf("a number was given again: %+v", got)
	}
}

// eventsInOrderOfCommits reads the log while many write it: nothing is missed, and nothing comes twice.
func eventsInOrderOfCommits(t *testing.T, s store.Store) {
	const writers, each = 8, 25
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for i := range each {
				err := s.Update(t.Context(), func(tx store.Tx) error { return tx.AppendEvent(event(store.EventCommand, "", i)) })
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	written := make(chan struct{})
	go func() { wg.Wait(); close(written) }()
	for next, last := int64(0), false; ; {
		p, err := s.Events(t.Context(), next, store.EventFilter{}, 7)
		if err != nil {
			t.Error(err)
			break
		}
		for _, e := range p.Events {
			if e.Seq != next+1 {
				t.Errorf("event %d comes after %d", e.Seq, next)
			}
			next = e.Seq
		}
		if len(p.Events) == 0 && last {
			if next != writers*each {
				t.Errorf("%d events were read, want %d", next, writers*each)
			}
			break
		}
		select {
		case <-written:
			last = true
		default:
		}
	}
	wg.Wait()
}
