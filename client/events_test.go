package client_test

import (
	"context"
	"errors"
	"testing"
	"time"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/sandbox"
)

func events(t *testing.T, c *client.Client, query client.EventQuery) *client.EventStream {
	t.Helper()
	s, err := c.Events(t.Context(), query)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func wantEvent(t *testing.T, s *client.EventStream, seq int64) {
	t.Helper()
	e, err := s.Next()
	if err != nil || e.Seq != seq || e.Type != "sandbox" || e.Time.IsZero() || string(e.Object) != `{"state":"running"}` || s.LastID() != seq {
		t.Errorf("got %+v, %v, at %d; want event %d", e, err, s.LastID(), seq)
	}
}

// TestEvents: each event comes once, also over restarts that come before the first one.
func TestEvents(t *testing.T) {
	t.Parallel()
	s, c, made := box(t)
	id := sandbox.ID(made.ID)
	add := func(id sandbox.ID, kind control.EventType) int64 {
		return s.AddEvent(control.Event{Type: kind, SandboxID: id, Object: []byte(`{"state":"running"}`)})
	}
	add(id, control.EventSandbox)
	stream := events(t, c, client.EventQuery{Sandbox: "box", Types: []string{"sandbox", "command"}})
	if stream.LastID() != 1 {
		t.Errorf("it begins at %d", stream.LastID())
	}
	s.DropStreams()
	second := add(id, control.EventSandbox) // while nobody is connected, or just before the stream broke
	wantEvent(t, stream, second)
	add(id, control.EventTemplate)
	add(sandbox.NewID(), control.EventSandbox)
	third := add(id, control.EventSandbox)
	wantEvent(t, stream, third)
	s.DropStreams()
	s.DropStreams()
	wantEvent(t, stream, add(id, control.EventSandbox))

	last := add(id, control.EventSandbox)
	s.DropEvents(last - 1)
	beginning := int64(0)
	old := events(t, c, client.EventQuery{Since: &beginning})
	if _, err := old.Next(); err == nil || *missed(err) != (client.EventsMissed{Oldest: last}) {
		t.Errorf("got %v, want events before %d to be missed", err, last)
	}
	wantEvent(t, old, last)
}

func missed(err error) *client.EventsMissed {
	if m, ok := errors.AsType[*client.EventsMissed](err); ok {
		return m
	}
	return &client.EventsMissed{}
}

func TestEventsEnd(t *testing.T) {
	t.Parallel()
	s, c, _ := box(t)
	if _, err := c.Events(t.Context(), client.EventQuery{Types: []string{"x"}}); err == nil {
		t.Error("a refused query gives a stream")
	}
	if _, err := client.New(s.URL, "e2b_x").Events(t.Context(), client.EventQuery{}); err == nil {
		t.Error("an unknown key gives a stream")
	}
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := c.Events(ctx, client.EventQuery{})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	time.AfterFunc(10*time.Millisecond, cancel)
	if _, err := stream.Next(); !errors.Is(err, context.Canceled) {
		t.Errorf("after its context's end: %v", err)
	}
}

func TestLeases(t *testing.T) {
	t.Parallel()
	_, c, made := box(t)
	got, err := c.SetLease(t.Context(), made.ID, apiv1.PatchLease{TTLSeconds: 60})
	if err != nil || got.Lease == nil || got.Lease.TTLSeconds != 60 || got.Lease.ExpiresAt == nil {
		t.Fatalf("%+v, %v", got, err)
	}
	more, err := c.SetLease(t.Context(), made.ID, apiv1.PatchLease{TTLSeconds: 30, Mode: "extend"})
	if err != nil || more.Lease.ExpiresAt.Sub(*got.Lease.ExpiresAt) != 30*time.Second {
		t.Errorf("%+v, %v", more.Lease, err)
	}
	if none, err := c.RemoveLease(t.Context(), made.ID); err != nil || none.Lease != nil {
		t.Errorf("%+v, %v", none, err)
	}
}
