package control_test

import (
	"testing"

	"github.com/space-sandbox/space/internal/sandbox"
)

func TestResizeCommand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	box := w.running(sandbox.Spec{})
	made := func(spec sandbox.CommandSpec) sandbox.Command {
		t.Helper()
		made, err := w.c.CreateCommand(t.Context(), w.call(), string(box.ID), spec, true)
		if err != nil {
			t.Fatal(err)
		}
		return made.Command
	}
	cmd := made(sandbox.CommandSpec{Argv: []string{"sleep"}, PTY: &sandbox.TerminalSize{Cols: 80, Rows: 24}})
	if spec := w.guests.spec(string(cmd.SandboxID), string(cmd.ProcessID)); spec.GetPty().GetCols() != 80 || !spec.Stdin {
		t.Errorf("what the guest got: %v", spec)
	}
	if got, err := w.c.ResizeCommand(t.Context(), cmd.ID, sandbox.TerminalSize{Cols: 132, Rows: 43}); err != nil || got.State != sandbox.CommandRunning {
		t.Errorf("resize: %+v, %v", got, err)
	}
	if spec := w.guests.spec(string(cmd.SandboxID), string(cmd.ProcessID)); spec.GetPty().GetCols() != 132 || spec.GetPty().GetRows() != 43 {
		t.Errorf("what the guest got: %v", spec)
	}
	if _, err := w.c.KillCommand(t.Context(), cmd.ID); err != nil {
		t.Fatal(err)
	}
	w.eventually("it has ended", func() bool {
		cmd, err := w.c.GetCommand(t.Context(), cmd.ID, 0)
		return err == nil && cmd.State.Ended()
	})
	_, err := w.c.ResizeCommand(t.Context(), cmd.ID, sandbox.TerminalSize{Cols: 1, Rows: 1})
	wantCode(t, err, sandbox.CodeNotRunning)
	_, err = w.c.ResizeCommand(t.Context(), made(sandbox.CommandSpec{Argv: []string{"sleep"}}).ID, sandbox.TerminalSize{Cols: 1, Rows: 1})
	wantCode(t, err, sandbox.CodeInvalidState)
	_, err = w.c.CreateCommand(t.Context(), w.call(), string(box.ID), sandbox.CommandSpec{Argv: []string{"x"}, PTY: &sandbox.TerminalSize{Cols: 1}}, true)
	wantCode(t, err, sandbox.CodeInvalidArgument)
	// This world has no place for transcripts.
	_, err = w.c.CreateCommand(t.Context(), w.call(), string(box.ID), sandbox.CommandSpec{Argv: []string{"x"}, Record: true}, true)
	wantCode(t, err, sandbox.CodeHostSetup)
}
