package control_test

import (
	"context"
	"testing"

	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/sandbox"
)

// Commands that do not read keep their input in memory, so there is a bound on it. It is given back when they end, and
// other sandboxes have room of their own.
func TestStdinThatNobodyReadsIsBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	box, other := w.running(sandbox.Spec{}), w.running(sandbox.Spec{})
	w.gw.setHook(func(ctx context.Context, call, id string) error {
		if call != "WriteStdin" || id != string(box.ID) {
			return nil
		}
		<-ctx.Done() // it does not read
		return ctx.Err()
	})
	input := make([]byte, 1<<20)
	exec := func(ctx context.Context, id sandbox.ID, argv string) (control.ExecResult, error) {
		return w.c.Exec(ctx, w.call(), string(id), sandbox.CommandSpec{Argv: []string{argv}}, input)
	}
	gone, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 17)
	for range 16 {
		go func() {
			_, err := exec(gone, box.ID, "sleep")
			ended <- err
		}()
	}
	running := func() []sandbox.Command {
		page, err := w.c.ListCommands(t.Context(), string(box.ID), control.CommandFilter{States: []sandbox.CommandState{sandbox.CommandRunning}})
		if err != nil {
			t.Fatal(err)
		}
		return page.Items
	}
	w.eventually("all run", func() bool { return len(running()) == 16 })
	cancel() // the callers go; what they gave is still to be read
	for range 16 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	_, err := exec(t.Context(), box.ID, "sleep")
	wantCode(t, err, sandbox.CodeCapacity)
	if n := len(running()); n != 16 {
		t.Errorf("%d commands, want that nothing happened", n)
	}
	if res, err := exec(t.Context(), other.ID, "cat"); err != nil || len(res.Stdout) != len(input) {
		t.Errorf("the other sandbox: %d bytes, %v", len(res.Stdout), err)
	}
	for _, cmd := range running() {
		if _, err := w.guests.finish(string(box.ID), string(cmd.ProcessID), 0, ""); err != nil {
			t.Fatal(err)
		}
	}
	w.gw.setHook(nil)
	w.eventually("there is room again", func() bool {
		_, err := exec(t.Context(), box.ID, "cat")
		return err == nil
	})
}
