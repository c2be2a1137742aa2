package control_test

import (
	"testing"
	"time"

	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/sandbox"
)

// TestSessionsExpire: one that nobody attaches to in time ends as expired, one that was started goes on.
func TestSessionsExpire(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.crash()
	w.limits = control.Limits{AttachWithin: 300 * time.Millisecond}
	w.startControl()
	w.eventually("ready", func() bool { return w.c.Ready(t.Context()) == nil })
	box := w.running(sandbox.Spec{})
	running, err := w.c.CreateCommand(t.Context(), w.call(), string(box.ID), sandbox.CommandSpec{Argv: []string{"sleep"}}, true)
	if err != nil {
		t.Fatal(err)
	}
	made, err := w.c.CreateCommand(t.Context(), w.call(), string(box.ID), sandbox.CommandSpec{Argv: []string{"sleep"}}, false)
	if err != nil {
		t.Fatal(err)
	}
	cmd, err := w.c.GetCommand(t.Context(), made.Command.ID, time.Minute)
	if err != nil || cmd.State != sandbox.CommandExpired || cmd.EndedAt.Sub(cmd.CreatedAt) < 300*time.Millisecond {
		t.Errorf("never attached: %+v %v", cmd, err)
	}
	_, err = w.c.AttachCommand(t.Context(), w.call().Principal, made.Command.ID)
	wantCode(t, err, sandbox.CodeInvalidState)
	if cmd, err := w.c.GetCommand(t.Context(), running.Command.ID, 0); err != nil || cmd.State != sandbox.CommandRunning {
		t.Errorf("started: %+v %v", cmd, err)
	}
}

// TestKillBeforeStart: a session that was not started has failed, and is never started.
func TestKillBeforeStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	box := w.running(sandbox.Spec{})
	made, err := w.c.CreateCommand(t.Context(), w.call(), string(box.ID), sandbox.CommandSpec{Argv: []string{"sleep"}}, false)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		cmd, err := w.c.KillCommand(t.Context(), made.Command.ID)
		if err != nil || cmd.State != sandbox.CommandFailed || cmd.ErrorCode != "canceled" {
			t.Errorf("kill: %+v %v", cmd, err)
		}
	}
	p, err := w.guests.start(string(box.ID), string(made.Command.ProcessID))
	if err != nil || p.Pid != 0 {
		t.Errorf("start after it: %v %v", p, err)
	}
}
