package control_test

import (
	"context"
	"testing"
	"time"

	"github.com/space-sandbox/space/internal/sandbox"
)

// A guest that reports without end, and keeps waiting whoever answers it, holds up no other sandbox.
func TestFloodingGuestHoldsUpNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.stopControl()
	w.limits.AckTimeout = time.Hour // what waits for the hostile guest waits to the end of the test
	w.startControl()
	w.eventually("control is ready again", func() bool { return w.c.Ready(t.Context()) == nil })
	hostile, other := w.running(sandbox.Spec{}), w.running(sandbox.Spec{})
	liar, waiting := w.started(hostile.ID), w.started(other.ID)
	release, reached := make(chan struct{}), make(chan struct{}, 1)
	defer close(release)
	w.gw.setHook(func(ctx context.Context, call, id string) error {
		if call != "AckProcesses" || id != string(hostile.ID) {
			return nil
		}
		select {
		case reached <- struct{}{}:
		default:
		}
		select {
		case <-release:
		case <-ctx.Done():
		}
		return ctx.Err()
	})
	if _, err := w.guests.finish(string(hostile.ID), string(liar.ProcessID), 0, ""); err != nil {
		t.Fatal(err)
	}
	<-reached // control now waits for the hostile guest
	for range 400 {
		w.guests.resync(string(hostile.ID))
	}
	if _, err := w.guests.finish(string(other.ID), string(waiting.ProcessID), 3, ""); err != nil {
		t.Fatal(err)
	}
	got, err := w.c.GetCommand(t.Context(), waiting.ID, time.Minute)
	if err != nil || got.State != sandbox.CommandExited || got.ExitCode == nil || *got.ExitCode != 3 {
		t.Errorf("the other sandbox's command: %+v %v", got, err)
	}
}
