package vmmtest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/vmm"
)

// watched is how long a paused guest is looked at: one that runs counts on within a fraction of it.
const watched = 300 * time.Millisecond

// counter is a guest that counts.
type counter struct {
	suite
	parts Machine
	m     vmm.Machine
}

// counting boots a machine and has its guest count.
func (s suite) counting(t *testing.T) *counter {
	t.Helper()
	parts, m := s.boot(t, s.Driver(t))
	s.hello(t, parts)
	if err := parts.StartCounting(s.context(t)); err != nil {
		t.Fatalf("start counting: %v", err)
	}
	c := &counter{s, parts, m}
	c.moves(t)
	return c
}

func (c *counter) at(t *testing.T) int64 {
	t.Helper()
	n, err := c.parts.Counted(c.context(t), c.m)
	if err != nil {
		t.Fatalf("count: %v", err)
	}
	return n
}

// moves waits until the guest has counted on.
func (c *counter) moves(t *testing.T) {
	t.Helper()
	from := c.at(t)
	if !c.await(func() bool { return c.at(t) > from }) {
		t.Fatalf("the guest does not count on from %d", from)
	}
}

// stands watches for a while that the guest does not.
func (c *counter) stands(t *testing.T) {
	t.Helper()
	from, looks := c.at(t), 0
	for end := time.Now().Add(watched); time.Now().Before(end); looks++ {
		if now := c.at(t); now != from {
			t.Fatalf("the paused guest has counted from %d to %d", from, now)
		}
	}
	if looks < 3 {
		t.Errorf("only %d looks", looks)
	}
}

func (c *counter) pause(t *testing.T) {
	t.Helper()
	if err := c.m.Pause(c.context(t)); err != nil {
		t.Fatalf("Pause: %v", err)
	}
}

func (c *counter) resume(t *testing.T) {
	t.Helper()
	if err := c.m.Resume(c.context(t)); err != nil {
		t.Fatalf("Resume: %v", err)
	}
}

// adoptAgain goes on with the machine as another node would.
func (c *counter) adoptAgain(t *testing.T) {
	t.Helper()
	state := roundTrip(t, c.m.State())
	if err := c.m.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	m, err := c.Driver(t).Adopt(c.context(t), state)
	if err != nil {
		t.Fatalf("Adopt: %v", err)
	}
	t.Cleanup(func() { c.end(t, m) })
	c.m = m
}

// pauseAndResume does both twice, for both are idempotent.
func (s suite) pauseAndResume(t *testing.T) {
	c := s.counting(t)
	c.resume(t)
	for range 2 {
		c.pause(t)
		c.stands(t)
	}
	for range 2 {
		c.resume(t)
		c.moves(t)
	}
	s.hello(t, c.parts)
}

// pauseOverAdopt: whoever comes finds a paused machine paused and a running one running, and changes both.
func (s suite) pauseOverAdopt(t *testing.T) {
	c := s.counting(t)
	c.pause(t)
	c.stands(t)
	c.adoptAgain(t)
	c.stands(t)
	c.pause(t)
	c.stands(t)
	c.resume(t)
	c.moves(t)
	c.adoptAgain(t)
	c.moves(t)
	c.resume(t)
	c.pause(t)
	c.stands(t)
}

// changesAtOnce: many callers at the same time succeed, and a later one has what it asked for.
func (s suite) changesAtOnce(t *testing.T) {
	c := s.counting(t)
	var calls sync.WaitGroup
	for i := range 12 {
		calls.Go(func() {
			act := c.m.Pause
			if i%2 == 0 {
				act = c.m.Resume
			}
			if err := act(s.context(t)); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
	c.pause(t)
	c.stands(t)
	c.resume(t)
	c.moves(t)
}

// endOfPaused: Kill works on a paused machine, the end of a paused VMM is told as ever, and after both nothing is left.
func (s suite) endOfPaused(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(ctx context.Context, parts Machine, m vmm.Machine) error
		want string
	}{
		{"Killed", func(ctx context.Context, _ Machine, m vmm.Machine) error { return m.Kill(ctx) }, vmm.ExitKilled},
		{"FromOutside", func(_ context.Context, parts Machine, m vmm.Machine) error { return parts.endOutside(m.State()) }, sandbox.ReasonVMMExit},
	} {
		t.Run(c.name, func(t *testing.T) {
			parts := s.Machine(t)
			before := count(t)
			m, err := s.Driver(t).Boot(s.context(t), parts.Spec)
			if err != nil {
				t.Fatal(err)
			}
			s.hello(t, parts)
			if err := m.Pause(s.context(t)); err != nil {
				t.Errorf("Pause: %v", err)
			}
			if err := c.end(s.context(t), parts, m); err != nil {
				t.Error(err)
			}
			if e, err := m.Wait(s.context(t)); err != nil || e.Reason != c.want {
				t.Errorf("exit %+v, %v; want %s", e, err, c.want)
			}
			for name, act := range map[string]func(context.Context) error{"Pause": m.Pause, "Resume": m.Resume} {
				if err := act(s.context(t)); !errors.Is(err, vmm.ErrGone) {
					t.Errorf("%s after the end: %v", name, err)
				}
			}
			if err := m.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
			s.nothingLeft(t, parts.Spec, before)
		})
	}
}

// changeWithoutTime: a caller that does not wait gets an error, and the next call has what it asks for.
func (s suite) changeWithoutTime(t *testing.T) {
	c := s.counting(t)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for name, act := range map[string]func(context.Context) error{"Pause": c.m.Pause, "Resume": c.m.Resume} {
		if err := act(gone); err == nil {
			t.Errorf("%s with a canceled context succeeded", name)
		}
	}
	c.pause(t)
	c.stands(t)
	c.resume(t)
	c.moves(t)
}
