package control_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/space-sandbox/space/internal/sandbox"
)

// hanging makes every call that reaches the guest of a sandbox wait until release is called. Other hooks run first.
func (w *world) hanging(id sandbox.ID, before func(call, id string) error) (reached <-chan struct{}, release func()) {
	w.t.Helper()
	came, open := make(chan struct{}, 1), make(chan struct{})
	release = sync.OnceFunc(func() { close(open) })
	w.t.Cleanup(release) // before the world ends
	w.gw.setHook(func(ctx context.Context, call, box string) error {
		if before != nil {
			if err := before(call, box); err != nil {
				return err
			}
		}
		switch call {
		case "CreateProcess", "StartProcess", "GetProcess", "SignalProcess", "AckProcesses":
		default:
			return nil
		}
		if box != string(id) {
			return nil
		}
		select {
		case came <- struct{}{}:
		default:
		}
		select {
		case <-open:
		case <-ctx.Done():
		}
		return ctx.Err()
	})
	return came, release
}

// A guest that does not answer the start of a command does not keep control from configuring the gateway anew, and so
// holds up nobody else.
func TestHangingCreateProcessHoldsUpNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.stopControl()
	w.limits.CallTimeout, w.limits.StartPatience = time.Hour, time.Hour // to the end of the test
	w.startControl()
	w.eventually("control is ready again", func() bool { return w.c.Ready(t.Context()) == nil })
	hostile, other, third := w.running(sandbox.Spec{}), w.running(sandbox.Spec{}), w.running(sandbox.Spec{})
	var configured atomic.Int64
	reached, release := w.hanging(hostile.ID, func(call, id string) error {
		if call == "Configure" {
			configured.Add(1)
		}
		if call == "Unpublish" && id == string(third.ID) { // makes control connect to the gateway anew
			return sandbox.Errorf(sandbox.CodeInternal, "not now")
		}
		return nil
	})
	done := make(chan error, 1)
	go func() {
		_, err := w.c.CreateCommand(t.Context(), w.call(), string(hostile.ID), sandbox.CommandSpec{Argv: []string{"sleep"}}, true)
		done <- err
	}()
	<-reached
	w.deleted(third.ID)
	w.eventually("the gateway is configured anew", func() bool { return configured.Load() > 0 })
	w.eventually("control is ready", func() bool { return w.c.Ready(t.Context()) == nil })
	res, err := w.c.Exec(t.Context(), w.call(), string(other.ID), sandbox.CommandSpec{Argv: []string{"true", "hi"}}, nil)
	if err != nil || res.Command.State != sandbox.CommandExited || string(res.Stdout) != "hi" {
		t.Errorf("the other sandbox: %+v %v", res, err)
	}
	w.running(sandbox.Spec{})
	release()
	if err := <-done; err != nil {
		t.Errorf("the one that hung: %v", err)
	}
}

// A guest that answers nothing keeps only its own sessions from expiring.
func TestHangingGuestDelaysNoExpiry(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.stopControl()
	w.limits.AttachWithin = 300 * time.Millisecond
	w.limits.AckTimeout, w.limits.CallTimeout = time.Hour, time.Hour
	w.startControl()
	w.eventually("control is ready again", func() bool { return w.c.Ready(t.Context()) == nil })
	hostile := w.running(sandbox.Spec{})
	others := []sandbox.Sandbox{w.running(sandbox.Spec{}), w.running(sandbox.Spec{}), w.running(sandbox.Spec{})}
	spec := sandbox.CommandSpec{Argv: []string{"sleep"}}
	for range 3 {
		if _, err := w.c.CreateCommand(t.Context(), w.call(), string(hostile.ID), spec, false); err != nil {
			t.Fatal(err)
		}
	}
	reached, _ := w.hanging(hostile.ID, nil)
	<-reached
	for _, box := range others {
		made, err := w.c.CreateCommand(t.Context(), w.call(), string(box.ID), spec, false)
		if err != nil {
			t.Fatal(err)
		}
		cmd, err := w.c.GetCommand(t.Context(), made.Command.ID, patience)
		if err != nil || cmd.State != sandbox.CommandExpired {
			t.Errorf("a session of another sandbox: %+v %v", cmd, err)
		}
	}
}
