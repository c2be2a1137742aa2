package vmmtest

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/vmm"
)

// life is one machine from its boot over an adoption to its end.
func (s suite) life(t *testing.T) {
	d := s.Driver(t)
	parts := s.Machine(t)
	before := count(t)
	m, err := d.Boot(s.context(t), parts.Spec)
	if err != nil {
		t.Fatalf("Boot: %v", err)
	}
	t.Cleanup(func() { s.end(t, m) })
	if m.Isolation() != s.Isolation {
		t.Errorf("isolation %q, want %q", m.Isolation(), s.Isolation)
	}
	filesAreOpen(t, parts.Spec)
	s.hello(t, parts)
	if diff := cmp.Diff(m.State(), roundTrip(t, m.State())); diff != "" {
		t.Errorf("state through JSON:\n%s", diff)
	}
	s.console(t, parts, m)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait with a canceled context: %v", err)
	}
	if err := m.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	s.wrongStates(t, m.State())
	s.adoptAndKill(t, parts, m.State())
	if err := m.Kill(s.context(t)); err != nil {
		t.Errorf("Kill of a closed handle after the end: %v", err)
	}
	s.nothingLeft(t, parts.Spec, before)
	filesAreOpen(t, parts.Spec)
}

// adoptAndKill goes on with a machine as another node would.
func (s suite) adoptAndKill(t *testing.T, parts Machine, state vmm.State) {
	t.Helper()
	d := s.Driver(t)
	m, err := d.Adopt(s.context(t), roundTrip(t, state))
	if err != nil {
		t.Fatalf("Adopt: %v", err)
	}
	defer s.end(t, m)
	s.hello(t, parts)
	if m.Isolation() != s.Isolation {
		t.Errorf("isolation after Adopt %q", m.Isolation())
	}
	if diff := cmp.Diff(state, m.State()); diff != "" {
		t.Errorf("state after Adopt:\n%s", diff)
	}
	s.console(t, parts, m)
	exits := make(chan vmm.Exit, 8)
	for range cap(exits) {
		go func() {
			e, err := m.Wait(s.context(t))
			if err != nil {
				t.Errorf("Wait: %v", err)
			}
			exits <- e
		}()
	}
	for range 3 {
		if err := m.Kill(s.context(t)); err != nil {
			t.Errorf("Kill: %v", err)
		}
	}
	for range cap(exits) {
		if e := <-exits; e.Reason != vmm.ExitKilled {
			t.Errorf("exit %+v", e)
		}
	}
	if _, err := d.Adopt(s.context(t), state); !errors.Is(err, vmm.ErrGone) {
		t.Errorf("Adopt after the end: %v", err)
	}
}

// wrongStates are those of machines that are not this one, though the pid is the same.
func (s suite) wrongStates(t *testing.T, state vmm.State) {
	t.Helper()
	d := s.Driver(t)
	for name, change := range map[string]func(*vmm.State){
		"start time":     func(s *vmm.State) { s.Process.StartTime++ },
		"boot id":        func(s *vmm.State) { s.Process.BootID = "00000000-0000-0000-0000-000000000000" },
		"uid":            func(s *vmm.State) { s.Process.UID++ },
		"another driver": func(s *vmm.State) { s.Driver = "another" },
	} {
		wrong := roundTrip(t, state)
		change(&wrong)
		m, err := d.Adopt(s.context(t), wrong)
		if !errors.Is(err, vmm.ErrGone) {
			t.Errorf("Adopt with a wrong %s: %v", name, err)
		}
		if err == nil {
			m.Close()
		}
	}
}

// console asks for the console after the guest has done its worst to it.
func (s suite) console(t *testing.T, parts Machine, m vmm.Machine) {
	t.Helper()
	if parts.Flood != nil {
		if err := parts.Flood(s.context(t)); err != nil {
			t.Errorf("writing to the console: %v", err)
		}
	}
	text := s.readConsole(t, m, parts.Flood)
	if len(text) > vmm.MaxConsole || !utf8.ValidString(text) || strings.ContainsAny(text, "\x1b\x00\x07\r") {
		t.Errorf("console of %d bytes: %.200q", len(text), text)
	}
	if parts.Flood != nil && len(text) < vmm.MaxConsole/2 {
		t.Errorf("only %d bytes of a full console: %q", len(text), text)
	}
}

// readConsole asks until there is something, where the guest has written: after an adoption the driver may still be
// connecting.
func (s suite) readConsole(t *testing.T, m vmm.Machine, flooded func(context.Context) error) string {
	t.Helper()
	var text string
	s.await(func() bool {
		var err error
		if text, err = m.Console(s.context(t)); err != nil {
			t.Fatalf("Console: %v", err)
		}
		return text != "" || flooded == nil
	})
	return text
}

func (s suite) endedFromOutside(t *testing.T) {
	d := s.Driver(t)
	parts, m := s.boot(t, d)
	if err := parts.endOutside(m.State()); err != nil {
		t.Fatal(err)
	}
	e, err := m.Wait(s.context(t))
	if err != nil || e.Reason != sandbox.ReasonVMMExit || e.Detail == "" {
		t.Errorf("exit %+v, %v", e, err)
	}
	for _, left := range leftovers(t, parts.Spec) {
		t.Errorf("left: %s", left)
	}
	if err := m.Kill(s.context(t)); err != nil {
		t.Errorf("Kill after the end: %v", err)
	}
	if again, err := m.Wait(s.context(t)); again != e || err != nil {
		t.Errorf("the exit has changed to %+v, %v", again, err)
	}
}

func (s suite) guestEndsItself(t *testing.T) {
	parts, m := s.boot(t, s.Driver(t))
	s.hello(t, parts)
	parts.PowerOff(s.context(t))
	e, err := m.Wait(s.context(t))
	if err != nil || e.Reason != sandbox.ReasonGuestReboot {
		t.Errorf("exit %+v, %v", e, err)
	}
	if e.Detail == "" || len(e.Detail) > vmm.MaxConsole || !utf8.ValidString(e.Detail) {
		t.Errorf("detail of %d bytes: %q", len(e.Detail), e.Detail)
	}
	for _, left := range leftovers(t, parts.Spec) {
		t.Errorf("left: %s", left)
	}
}

// guestEndsItselfUnseen: node is away when the guest ends. Afterwards the machine is gone, or it is found and its end
// is told.
func (s suite) guestEndsItselfUnseen(t *testing.T) {
	parts, m := s.boot(t, s.Driver(t))
	s.hello(t, parts)
	state := m.State()
	if err := m.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	parts.PowerOff(s.context(t))
	d := s.Driver(t)
	adopted, err := d.Adopt(s.context(t), state)
	if errors.Is(err, vmm.ErrGone) {
		return
	}
	if err != nil {
		t.Fatalf("Adopt: %v", err)
	}
	defer s.end(t, adopted)
	e, err := adopted.Wait(s.context(t))
	if err != nil || e.Reason != sandbox.ReasonGuestReboot {
		t.Errorf("exit %+v, %v", e, err)
	}
}

func (s suite) brokenParts(t *testing.T) {
	for name, breakIt := range s.Broken {
		t.Run(name, func(t *testing.T) {
			d := s.Driver(t)
			parts := s.Machine(t)
			broken := parts.Spec
			breakIt(t, &broken)
			before := count(t)
			m, err := d.Boot(s.context(t), broken)
			if err == nil {
				s.end(t, m)
				t.Fatal("Boot succeeded")
			}
			if e, ok := errors.AsType[*sandbox.Error](err); !ok || e.Message == "" || e.Cause == "" {
				t.Errorf("not an error for people: %#v", err)
			}
			t.Log(err)
			s.nothingLeft(t, parts.Spec, before)
		})
	}
}

// canceled ends Boot at different moments.
func (s suite) canceled(t *testing.T) {
	for _, after := range []time.Duration{0, time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond, 80 * time.Millisecond} {
		t.Run(after.String(), func(t *testing.T) {
			d := s.Driver(t)
			parts := s.Machine(t)
			before := count(t)
			ctx, cancel := context.WithCancel(t.Context())
			if after == 0 {
				cancel()
			}
			timer := time.AfterFunc(after, cancel)
			defer timer.Stop()
			m, err := d.Boot(ctx, parts.Spec)
			if err == nil { // it was faster
				s.end(t, m)
			} else if after == 0 && !errors.Is(err, context.Canceled) {
				t.Errorf("Boot: %v", err)
			}
			s.nothingLeft(t, parts.Spec, before)
		})
	}
}

// filesAreOpen: the files of a Spec are the caller's before and after.
func filesAreOpen(t *testing.T, spec vmm.Spec) {
	t.Helper()
	for name, f := range map[string]*os.File{"kernel": spec.Kernel, "initrd": spec.Initrd, "memory": spec.RAM, "disk": spec.Disk, "tap": spec.Tap} {
		if f == nil {
			continue
		}
		if _, err := f.Stat(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func roundTrip(t *testing.T, state vmm.State) vmm.State {
	t.Helper()
	data, err := json.Marshal(state)
	if err != nil {
		t.Fatal(err)
	}
	var out vmm.State
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	return out
}
