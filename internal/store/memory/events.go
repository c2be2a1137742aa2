package memory

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/space-sandbox/space/internal/store"
)

func cloneEvent(e store.Event) store.Event {
	e.Object = slices.Clone(e.Object)
	return e
}

func (v view) Events(_ context.Context, after int64, f store.EventFilter, limit int) (store.EventPage, error) {
	if limit < 1 || limit > store.MaxEvents {
		return store.EventPage{}, fmt.Errorf("limit %d is not between 1 and %d", limit, store.MaxEvents)
	}
	page := store.EventPage{Oldest: v.s.newest - int64(len(v.s.events)) + 1, Newest: v.s.newest}
	first := sort.Search(len(v.s.events), func(i int) bool { return v.s.events[i].Seq > after })
	rows := v.s.events[first:]
	page.Next = max(after, page.Newest)
	if len(rows) > store.MaxEventScan {
		rows = rows[:store.MaxEventScan]
		page.Next = rows[len(rows)-1].Seq
	}
	for _, e := range rows {
		if f.SandboxID != "" && e.SandboxID != f.SandboxID || len(f.Types) > 0 && !slices.Contains(f.Types, e.Type) {
			continue
		}
		page.Events = append(page.Events, cloneEvent(e))
		if len(page.Events) == limit {
			page.Next = e.Seq
			break
		}
	}
	return page, nil
}

func (t *tx) AppendEvent(e store.Event) error {
	e = cloneEvent(e)
	t.s.newest++
	e.Seq, e.Time = t.s.newest, e.Time.Round(0).UTC()
	t.s.events = append(t.s.events, e)
	return nil
}

func (t *tx) PurgeEvents(before time.Time, keep, limit int64) (int64, error) {
	n := int64(0)
	for _, e := range t.s.events {
		if n == limit || !e.Time.Before(before) && int64(len(t.s.events))-n <= keep {
			break
		}
		n++
	}
	t.s.events = slices.Clone(t.s.events[n:])
	return n, nil
}
