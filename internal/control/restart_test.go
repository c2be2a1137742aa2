package control_test

import (
	"context"
	"slices"
	"testing"

	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
)

// TestCrashDuringCreate ends control while each call is under way: the next one goes on with the create, and there is one
// machine.
func TestCrashDuringCreate(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"EnsureMachine", "AwaitReady", "Publish"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			acc := w.crashesDuringCreate(call, 1)
			op := w.ended(acc.Operation.ID)
			if op.State != operation.Succeeded || op.Attempt != 2 {
				t.Errorf("operation: %+v", op)
			}
			for _, s := range op.Steps {
				if s.State == operation.Running {
					t.Errorf("step %s is still running", s.Name)
				}
			}
			if got := w.node.ids(); len(got) != 1 || w.box(acc.Sandbox.ID).State != sandbox.StateRunning {
				t.Errorf("machines %v, sandbox %+v", got, w.box(acc.Sandbox.ID))
			}
			w.deleted(acc.Sandbox.ID)
			// A gateway that was not connected yet forgets the route when it is configured.
			w.eventually("control is ready", func() bool { return w.c.Ready(t.Context()) == nil })
			w.nothingLeft()
		})
	}
}

// TestCrashingCreate: a create during which control ends again and again is given up, and leaves nothing.
func TestCrashingCreate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	acc := w.crashesDuringCreate("AwaitReady", 5)
	if op := w.ended(acc.Operation.ID); op.State != operation.Failed || op.Error.Code != sandbox.CodeInterrupted || op.Attempt != 6 {
		t.Errorf("operation: %+v", op)
	}
	if box := w.box(acc.Sandbox.ID); box.State != sandbox.StateFailed || box.Reason != sandbox.ReasonInterrupted {
		t.Errorf("sandbox: %s %s", box.State, box.Reason)
	}
	w.eventually("control is ready", func() bool { return w.c.Ready(t.Context()) == nil })
	w.nothingLeft()
	w.deleted(acc.Sandbox.ID)
}

// crashesDuringCreate accepts a create and ends control so many times while a call of it is under way.
func (w *world) crashesDuringCreate(call string, times int) control.Accepted {
	w.t.Helper()
	var acc control.Accepted
	for n := range times {
		g := newGate()
		w.node.setHook(g.at(call))
		w.gw.setHook(g.at(call))
		if n == 0 {
			acc = w.accept(sandbox.Spec{Name: "x"})
		} else {
			w.startControl()
		}
		<-g.reached
		w.crash()
		close(g.open)
	}
	w.node.setHook(nil)
	w.gw.setHook(nil)
	w.startControl()
	return acc
}

// TestCrashBeforeCreateBegan: a create that was accepted and not begun is simply run.
func TestCrashBeforeCreateBegan(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.crash()
	box := sandbox.Sandbox{ID: sandbox.NewID(), State: sandbox.StateCreating, DesiredState: sandbox.StateRunning,
		Template: sandbox.TemplateRef{Ref: "mini:latest", Digest: miniDigest}, Driver: "qemu", VCPUs: 1, MemoryMiB: 128,
		DiskMiB: 64, Generation: 1, AgentToken: "ab"}
	op := operation.Operation{ID: sandbox.NewOperationID(), Kind: "create", State: operation.Queued, Attempt: 1,
		Resource: operation.Resource{Type: "sandbox", ID: string(box.ID)}}
	box.OperationID = op.ID
	err := w.store.Update(t.Context(), func(tx store.Tx) error {
		if err := tx.InsertSandbox(box); err != nil {
			return err
		}
		return tx.InsertOperation(op)
	})
	if err != nil {
		t.Fatal(err)
	}
	w.startControl()
	if got := w.ended(op.ID); got.State != operation.Succeeded {
		t.Errorf("%s %v", got.State, got.Error)
	}
	if got := w.box(box.ID); got.State != sandbox.StateRunning {
		t.Errorf("sandbox: %s", got.State)
	}
}

// TestCrashDuringDelete: the next control completes the delete.
func TestCrashDuringDelete(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"Unpublish", "DeleteMachine"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			box := w.running(sandbox.Spec{})
			g := newGate()
			w.node.setHook(g.at(call))
			w.gw.setHook(g.at(call))
			acc, err := w.c.DeleteSandbox(t.Context(), w.call(), string(box.ID))
			if err != nil {
				t.Fatal(err)
			}
			<-g.reached
			w.crash()
			close(g.open)
			w.startControl()
			if op := w.ended(acc.Operation.ID); op.State != operation.Succeeded {
				t.Errorf("%s %v", op.State, op.Error)
			}
			w.eventually("control is ready", func() bool { return w.c.Ready(t.Context()) == nil })
			w.nothingLeft()
		})
	}
}

// TestRestartKeepsWhatRuns: routes and sessions are given to the gateway again, nothing else happens.
func TestRestartKeepsWhatRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	box := w.running(sandbox.Spec{})
	started := w.started(box.ID)
	w.crash()
	w.stopGateway()
	w.startGateway()
	if _, err := w.guests.finish(string(box.ID), string(started.ProcessID), 7, ""); err != nil {
		t.Fatal(err)
	}
	w.startControl()
	w.eventually("control is ready", func() bool { return w.c.Ready(t.Context()) == nil })
	if got := w.box(box.ID); got.State != sandbox.StateRunning || got.Revision != box.Revision {
		t.Errorf("sandbox: %+v", got)
	}
	if got := w.gw.sessions(string(box.ID)); !slices.Equal(got, []string{string(started.ID)}) {
		t.Errorf("sessions %v", got)
	}
	cmd, err := w.c.GetCommand(t.Context(), started.ID, patience)
	if err != nil || cmd.State != sandbox.CommandExited || *cmd.ExitCode != 7 {
		t.Errorf("the command that ended meanwhile: %+v %v", cmd, err)
	}
	w.eventually("the result is acknowledged", func() bool { return w.guests.isAcked(string(cmd.ProcessID)) })
}

func TestMachineExit(t *testing.T) {
	t.Parallel()
	for reason, lost := range map[string]string{sandbox.ReasonOOM: "vm_exit", sandbox.ReasonHostRestarted: "host_restarted", "nonsense": "vm_exit"} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			box := w.running(sandbox.Spec{})
			started := w.started(box.ID)
			w.node.exit(string(box.ID), reason, "last words")
			cmd, err := w.c.GetCommand(t.Context(), started.ID, patience)
			if err != nil || cmd.State != sandbox.CommandLost || cmd.Reason != lost {
				t.Errorf("command: %+v %v", cmd, err)
			}
			got := w.box(box.ID)
			want := reason
			if reason == "nonsense" {
				want = sandbox.ReasonVMMExit
			}
			if got.State != sandbox.StateFailed || got.Reason != want || got.Detail != "last words" || got.DesiredState != sandbox.StateRunning {
				t.Errorf("sandbox: %+v", got)
			}
			if ids := w.gw.routed(); len(ids) != 0 {
				t.Errorf("routes left: %v", ids)
			}
			if ids := w.node.ids(); len(ids) != 1 {
				t.Errorf("its disk was not kept: %v", ids)
			}
			_, err = w.c.AttachCommand(t.Context(), w.call().Principal, cmd.ID)
			wantCode(t, err, sandbox.CodeInvalidState)
			_, err = w.c.CreateCommand(t.Context(), w.call(), string(box.ID), sandbox.CommandSpec{Argv: []string{"x"}}, true)
			wantCode(t, err, sandbox.CodeInvalidState)
			w.deleted(box.ID)
			w.nothingLeft()
			_, err = w.c.GetCommand(t.Context(), cmd.ID, 0)
			wantCode(t, err, sandbox.CodeNotFound)
		})
	}
}

// TestExitDuringCreate: a machine that dies while its guest is awaited ends the create at once, with what is known.
func TestExitDuringCreate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := newGate()
	w.gw.setHook(g.at("AwaitReady"))
	acc := w.accept(sandbox.Spec{})
	<-g.reached
	w.node.exit(string(acc.Sandbox.ID), sandbox.ReasonVMMExit, "kernel panic")
	op := w.ended(acc.Operation.ID)
	if op.State != operation.Failed || op.Error.Code != sandbox.CodeVMMFailed || op.Error.Cause != "vmm_exit: kernel panic" {
		t.Errorf("%s %+v", op.State, op.Error)
	}
	w.nothingLeft()
}

// TestReconcile: what node has and has not, compared with the record, when control and node meet.
func TestReconcile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	kept, gone, exited := w.running(sandbox.Spec{}), w.running(sandbox.Spec{}), w.running(sandbox.Spec{})
	w.crash()
	w.node.exit(string(exited.ID), sandbox.ReasonHostRestarted, "boot")
	w.node.mu.Lock()
	w.node.drop(string(gone.ID))
	stray := string(sandbox.NewID())
	w.node.machines[stray] = cloneMachine(w.node.machines[string(kept.ID)], stray)
	w.node.mu.Unlock()
	w.startControl()
	w.eventually("control is ready", func() bool { return w.c.Ready(t.Context()) == nil })
	w.eventually("the stray is removed", func() bool { return !slices.Contains(w.node.ids(), stray) })
	w.eventually("the lost are known", func() bool {
		return w.box(gone.ID).State == sandbox.StateFailed && w.box(exited.ID).State == sandbox.StateFailed
	})
	if got := w.box(gone.ID); got.Reason != sandbox.ReasonVMMExit {
		t.Errorf("gone: %s", got.Reason)
	}
	if got := w.box(exited.ID); got.Reason != sandbox.ReasonHostRestarted {
		t.Errorf("exited: %s", got.Reason)
	}
	if got := w.box(kept.ID); got.State != sandbox.StateRunning {
		t.Errorf("kept: %s", got.State)
	}
	// Node's truth wins: a machine that was thought lost is running after all.
	w.node.mu.Lock()
	back := cloneMachine(w.node.machines[string(kept.ID)], string(gone.ID))
	w.node.machines[string(gone.ID)] = back
	w.node.tell(machineEvent(back))
	w.node.mu.Unlock()
	w.eventually("it counts as running again", func() bool { return w.box(gone.ID).State == sandbox.StateRunning })
	if !slices.Contains(w.gw.routed(), string(gone.ID)) {
		t.Error("it is not published")
	}
}

// TestNodeRestartInCreate: a create goes on over a restart of node.
func TestNodeRestartInCreate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := newGate()
	w.node.setHook(g.at("EnsureMachine"))
	acc := w.accept(sandbox.Spec{})
	<-g.reached
	w.stopNode()
	w.node.setHook(nil)
	w.startNode()
	if op := w.ended(acc.Operation.ID); op.State != operation.Succeeded {
		t.Errorf("%s %v", op.State, op.Error)
	}
	if ids := w.node.ids(); len(ids) != 1 {
		t.Errorf("machines %v", ids)
	}
}

// TestUnpublishThatFails makes the gateway reconnect, and so get all routes anew.
func TestUnpublishThatFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	box, other := w.running(sandbox.Spec{}), w.running(sandbox.Spec{})
	w.gw.setHook(func(_ context.Context, call, _ string) error {
		if call == "Unpublish" {
			return sandbox.Errorf(sandbox.CodeInternal, "no")
		}
		return nil
	})
	w.deleted(box.ID)
	w.eventually("the route is gone all the same", func() bool {
		return slices.Equal(w.gw.routed(), []string{string(other.ID)})
	})
}
