// Package vmmtest is the suite that every driver of package vmm passes.
package vmmtest

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/space-sandbox/space/internal/vmm"
)

// Setup is one driver under test, on this host.
type Setup struct {
	// Driver makes a driver. Each stands for a node that has been started anew: it shares with earlier ones what the
	// host keeps, and nothing else.
	Driver func(t *testing.T) vmm.Driver
	// Isolation is what machines must say of themselves.
	Isolation string
	// Machine makes the parts of a fresh machine and removes them after the test.
	Machine func(t *testing.T) Machine
	// Broken are changes to a Spec, by name, with each of which Boot must fail.
	Broken map[string]func(t *testing.T, spec *vmm.Spec)
	// Patience bounds each single thing that the suite waits for.
	Patience time.Duration
}

// Machine is the parts of one machine and the way to its guest.
type Machine struct {
	Spec vmm.Spec
	// Hello returns when the guest's agent has answered.
	Hello func(ctx context.Context) error
	// PowerOff makes the guest end by itself. An error of the call that did it is no failure.
	PowerOff func(ctx context.Context)
	// Flood makes the guest write more to its console than anyone keeps, control characters among it. Nil for a
	// driver without consoles.
	Flood func(ctx context.Context) error
	// StartCounting starts something in the guest that counts on and on. Counted tells how far it is, without help from
	// the guest.
	StartCounting func(ctx context.Context) error
	Counted       func(ctx context.Context, m vmm.Machine) (int64, error)
	// EndOutside ends the VMM behind the driver's back; nil sends SIGKILL to the process in the State.
	EndOutside func(state vmm.State) error
}

// Run runs the suite. Its tests run one after the other: they count what this process and the host have.
func Run(t *testing.T, setup func(t *testing.T) Setup) {
	s := suite{Setup: setup(t)}
	for _, c := range []struct {
		name string
		run  func(t *testing.T)
	}{
		{"Life", s.life},
		{"EndedFromOutside", s.endedFromOutside},
		{"PauseAndResume", s.pauseAndResume},
		{"PauseOverAdopt", s.pauseOverAdopt},
		{"ChangesAtOnce", s.changesAtOnce},
		{"ChangeWithoutTime", s.changeWithoutTime},
		{"EndOfPaused", s.endOfPaused},
		{"GuestEndsItself", s.guestEndsItself},
		{"GuestEndsItselfUnseen", s.guestEndsItselfUnseen},
		{"BrokenParts", s.brokenParts},
		{"Canceled", s.canceled},
	} {
		t.Run(c.name, c.run)
	}
}

// endOutside ends the VMM behind the driver's back.
func (m Machine) endOutside(state vmm.State) error {
	if m.EndOutside != nil {
		return m.EndOutside(state)
	}
	return syscall.Kill(state.Process.PID, syscall.SIGKILL)
}

type suite struct{ Setup }

// context bounds one wait. It ends with the test's cleanups, not before them.
func (s suite) context(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), s.Patience)
	t.Cleanup(cancel)
	return ctx
}

// await looks until a condition that nothing announces holds, for no longer than the suite's patience.
func (s suite) await(holds func() bool) bool {
	deadline := time.After(s.Patience)
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for !holds() {
		select {
		case <-look.C:
		case <-deadline:
			return false
		}
	}
	return true
}

// boot makes and boots a machine that does not outlive the test.
func (s suite) boot(t *testing.T, d vmm.Driver) (Machine, vmm.Machine) {
	t.Helper()
	parts := s.Machine(t)
	m, err := d.Boot(s.context(t), parts.Spec)
	if err != nil {
		t.Fatalf("Boot: %v", err)
	}
	t.Cleanup(func() { s.end(t, m) })
	return parts, m
}

func (s suite) end(t *testing.T, m vmm.Machine) {
	if err := m.Kill(s.context(t)); err != nil {
		t.Errorf("Kill: %v", err)
	}
	if err := m.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func (s suite) hello(t *testing.T, parts Machine) {
	t.Helper()
	if err := parts.Hello(s.context(t)); err != nil {
		t.Fatalf("the guest does not answer: %v", err)
	}
}
