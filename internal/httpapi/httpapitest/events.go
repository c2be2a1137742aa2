package httpapitest

import (
	"context"
	"slices"
	"time"

	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/sandbox"
)

// AddEvent puts an event at the end of the log and returns its number.
func (f *Fake) AddEvent(e control.Event) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lastEvent++
	e.Seq, e.Time = f.lastEvent, f.tick()
	f.events = append(f.events, e)
	f.notify()
	return e.Seq
}

// DropEvents forgets all events up to seq.
func (f *Fake) DropEvents(seq int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = slices.DeleteFunc(f.events, func(e control.Event) bool { return e.Seq <= seq })
}

// DropStreams ends the streams of events that are open, as a restart would.
func (f *Fake) DropStreams() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.restarted)
	f.restarted = make(chan struct{})
}

// ReadEvents reads what AddEvent has put there.
func (f *Fake) ReadEvents(ctx context.Context, after int64, filter control.EventFilter, wait time.Duration) (page control.EventPage, missed bool, err error) {
	f.mu.Lock()
	restarted := f.restarted
	f.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-restarted:
			cancel()
		case <-ctx.Done():
		}
	}()
	f.await(ctx, wait, func() bool {
		page = control.EventPage{Next: f.lastEvent, Newest: f.lastEvent, Oldest: f.lastEvent + 1}
		if len(f.events) > 0 {
			page.Oldest = f.events[0].Seq
		}
		missed = after >= 0 && (after < page.Oldest-1 || after > page.Newest)
		for _, e := range f.events {
			if after >= 0 && e.Seq > after && (filter.SandboxID == "" || e.SandboxID == filter.SandboxID) &&
				(len(filter.Types) == 0 || slices.Contains(filter.Types, e.Type)) {
				page.Events = append(page.Events, e)
			}
		}
		return after < 0 || missed || len(page.Events) > 0
	})
	select {
	case <-restarted:
		return page, false, sandbox.Errorf(sandbox.CodeUnavailable, "SPACE is stopping")
	default:
		return page, missed, nil
	}
}

// SandboxID resolves a name; an id is taken as it is.
func (f *Fake) SandboxID(ctx context.Context, ref string) (sandbox.ID, error) {
	if id, err := sandbox.ParseID(ref); err == nil {
		return id, nil
	}
	box, err := f.GetSandbox(ctx, ref)
	return box.ID, err
}
