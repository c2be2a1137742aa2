package control_test

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	nodev1 "github.com/space-sandbox/space/api/proto/node/v1"
	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
)

const (
	runs   = nodev1.MachineState_MACHINE_STATE_RUNNING
	stands = nodev1.MachineState_MACHINE_STATE_PAUSED
)

// ask makes a lifecycle call.
func (w *world) ask(verb sandbox.Verb, call control.Call, id sandbox.ID) (control.Accepted, error) {
	switch verb {
	case sandbox.VerbPause:
		return w.c.PauseSandbox(w.t.Context(), call, string(id))
	case sandbox.VerbResume:
		return w.c.ResumeSandbox(w.t.Context(), call, string(id))
	case sandbox.VerbRecover:
		return w.c.RecoverSandbox(w.t.Context(), call, string(id))
	}
	return w.c.DeleteSandbox(w.t.Context(), call, string(id))
}

// asked makes a call that must be accepted.
func (w *world) asked(verb sandbox.Verb, id sandbox.ID) sandbox.OperationID {
	w.t.Helper()
	acc, err := w.ask(verb, w.call(), id)
	if err != nil {
		w.t.Fatalf("%s: %v", verb, err)
	}
	return acc.Operation.ID
}

// done makes a call and waits for its success.
func (w *world) done(verb sandbox.Verb, id sandbox.ID) operation.Operation {
	w.t.Helper()
	op := w.ended(w.asked(verb, id))
	if op.State != operation.Succeeded {
		w.t.Fatalf("%s: %s %v", verb, op.State, op.Error)
	}
	return op
}

func (w *world) wantBox(id sandbox.ID, state, desired sandbox.State, reason string) {
	w.t.Helper()
	box := w.box(id)
	if box.State != state || box.DesiredState != desired || box.Reason != reason || box.OperationID != "" {
		w.t.Errorf("sandbox: %s, to be %s, reason %q, operation %q; want %s, %s, %q, none", box.State, box.DesiredState,
			box.Reason, box.OperationID, state, desired, reason)
	}
}

func (w *world) wantMachine(id sandbox.ID, state nodev1.MachineState, held string) {
	w.t.Helper()
	if got, why := w.node.state(string(id)); got != state {
		w.t.Errorf("machine: %s %s, want %s", got, why, state)
	}
	if got := w.gw.held(string(id)); got != held {
		w.t.Errorf("route held: %q, want %q", got, held)
	}
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	box := w.running(sandbox.Spec{Name: "x"})
	cmd := w.started(box.ID)
	acc, err := w.c.PauseSandbox(t.Context(), w.call(), "x")
	if err != nil || acc.Operation.State != operation.Queued || acc.Sandbox.DesiredState != sandbox.StatePaused || acc.Sandbox.OperationID != acc.Operation.ID {
		t.Errorf("accepted: %+v %v", acc, err)
	}
	if op := w.ended(acc.Operation.ID); op.State != operation.Succeeded || op.NoChange || op.Kind != "pause" {
		t.Errorf("pause: %+v", op)
	}
	w.wantBox(box.ID, sandbox.StatePaused, sandbox.StatePaused, "")
	w.wantMachine(box.ID, stands, "paused")
	if got := w.gw.sessions(string(box.ID)); !slices.Equal(got, []string{string(cmd.ID)}) {
		t.Errorf("sessions of the held route: %v", got)
	}
	w.standsStill(box, cmd)
	op := w.done(sandbox.VerbResume, box.ID)
	var steps []string
	for _, s := range op.Steps {
		steps = append(steps, s.Name)
	}
	if want := []string{"machine", "ready", "ready/init", "publish"}; !slices.Equal(steps, want) {
		t.Errorf("steps %v, want %v", steps, want)
	}
	w.wantBox(box.ID, sandbox.StateRunning, sandbox.StateRunning, "")
	w.wantMachine(box.ID, runs, "")
	if _, err := w.guests.finish(string(box.ID), string(cmd.ProcessID), 7, ""); err != nil {
		t.Fatal(err)
	}
	if got, err := w.c.GetCommand(t.Context(), cmd.ID, patience); err != nil || got.State != sandbox.CommandExited || *got.ExitCode != 7 {
		t.Errorf("the command that was paused with it: %+v %v", got, err)
	}
	w.deleted(box.ID)
	w.nothingLeft()
}

// standsStill checks what a paused sandbox refuses, and what it still answers.
func (w *world) standsStill(box sandbox.Sandbox, cmd sandbox.Command) {
	t := w.t
	t.Helper()
	refused := map[string]error{}
	_, refused["exec"] = w.c.Exec(t.Context(), w.call(), "x", sandbox.CommandSpec{Argv: []string{"true"}}, nil)
	_, refused["create"] = w.c.CreateCommand(t.Context(), w.call(), "x", sandbox.CommandSpec{Argv: []string{"true"}}, false)
	_, refused["signal"] = w.c.SignalCommand(t.Context(), cmd.ID, "SIGTERM")
	_, refused["kill"] = w.c.KillCommand(t.Context(), cmd.ID)
	_, refused["recover"] = w.ask(sandbox.VerbRecover, w.call(), box.ID)
	for what, err := range refused {
		wantCode(t, err, sandbox.CodeInvalidState)
		if e := sandbox.AsError(err); !strings.Contains(e.Remedy, "space resume x") || !strings.Contains(e.Cause, "paused") {
			t.Errorf("%s: %+v", what, e)
		}
		if what == "kill" && !strings.HasPrefix(sandbox.AsError(err).Message, "the end of a command ") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if got, err := w.c.GetCommand(t.Context(), cmd.ID, 0); err != nil || got.State != sandbox.CommandRunning {
		t.Errorf("the command while it stands still: %+v %v", got, err)
	}
	if list, err := w.c.ListCommands(t.Context(), "x", control.CommandFilter{}); err != nil || len(list.Items) != 1 {
		t.Errorf("list: %+v %v", list, err)
	}
}

// TestAgainChangesNothing: what is so already succeeds, and says that it has changed nothing.
func TestAgainChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	box := w.running(sandbox.Spec{})
	for _, verb := range []sandbox.Verb{sandbox.VerbResume, sandbox.VerbRecover, sandbox.VerbPause, sandbox.VerbPause, sandbox.VerbResume, sandbox.VerbResume} {
		want := verb.On(w.box(box.ID)).Rule == sandbox.Already
		acc, err := w.ask(verb, w.call(), box.ID)
		if err != nil {
			t.Fatal(err)
		}
		if want != (acc.Operation.State == operation.Succeeded) {
			t.Errorf("%s answers at once: %s", verb, acc.Operation.State)
		}
		if op := w.ended(acc.Operation.ID); op.State != operation.Succeeded || op.NoChange != want {
			t.Errorf("%s: %s, no_change %v, want %v", verb, op.State, op.NoChange, want)
		}
	}
	if n := w.node.did(stands.String(), string(box.ID)); n != 1 {
		t.Errorf("it was paused %d times", n)
	}
	if n := w.node.did("boot", string(box.ID)); n != 1 {
		t.Errorf("it was booted %d times", n)
	}
}

// TestTwoAtOnceAreOneAct: of calls that come together one acts, and all succeed.
func TestTwoAtOnceAreOneAct(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	box := w.running(sandbox.Spec{})
	for _, verb := range []sandbox.Verb{sandbox.VerbPause, sandbox.VerbResume} {
		ids := make([]sandbox.OperationID, 8)
		var wg sync.WaitGroup
		for i := range ids {
			wg.Go(func() { ids[i] = w.asked(verb, box.ID) })
		}
		wg.Wait()
		acts := 0
		for _, id := range ids {
			op := w.ended(id)
			if op.State != operation.Succeeded {
				t.Errorf("%s: %s %v", verb, op.State, op.Error)
			}
			if !op.NoChange {
				acts++
			}
		}
		if acts != 1 {
			t.Errorf("%d of 8 calls of %s acted", acts, verb)
		}
	}
	if n := w.node.did(runs.String(), string(box.ID)); n != 1 {
		t.Errorf("the machine was resumed %d times", n)
	}
	w.wantBox(box.ID, sandbox.StateRunning, sandbox.StateRunning, "")
}

// TestOrderOfAcceptance: what waits is run in the order in which it was accepted, and judged then.
func TestOrderOfAcceptance(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	box := w.running(sandbox.Spec{})
	g := newGate()
	w.node.setHook(g.at("PauseMachine"))
	first := w.asked(sandbox.VerbPause, box.ID)
	<-g.reached
	var ids []sandbox.OperationID
	for _, verb := range []sandbox.Verb{sandbox.VerbResume, sandbox.VerbPause, sandbox.VerbPause, sandbox.VerbRecover, sandbox.VerbResume} {
		ids = append(ids, w.asked(verb, box.ID))
		if got := w.box(box.ID).OperationID; got != first {
			t.Errorf("the operation under way: %s, want %s", got, first)
		}
	}
	wrong := w.call()
	wrong.IfState = sandbox.StatePaused // it will be running then
	mismatch, err := w.ask(sandbox.VerbPause, wrong, box.ID)
	if err != nil {
		t.Fatal(err)
	}
	busy := w.call()
	busy.IfBusyFail = true
	_, err = w.ask(sandbox.VerbPause, busy, box.ID)
	wantCode(t, err, sandbox.CodeSandboxBusy)
	if e, under := sandbox.AsError(err), w.box(box.ID).OperationID; e.SandboxID != box.ID || e.OperationID != under || under == "" {
		t.Errorf("busy with %q of %q, want %q of %q", e.OperationID, e.SandboxID, under, box.ID)
	}
	close(g.open)
	var got []string
	var last operation.Operation
	for _, id := range append([]sandbox.OperationID{first}, ids...) {
		op := w.ended(id)
		if op.StartedAt.Before(last.EndedAt) {
			t.Errorf("%s began before %s had ended", op.Kind, last.Kind)
		}
		last = op
		text := op.Kind + " " + string(op.State)
		if op.NoChange {
			text += " no_change"
		}
		got = append(got, text)
	}
	want := []string{"pause succeeded", "resume succeeded", "pause succeeded", "pause succeeded no_change", "recover failed", "resume succeeded"}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if op := w.ended(ids[3]); op.Error.Code != sandbox.CodeInvalidState || !strings.Contains(op.Error.Remedy, "resume") {
		t.Errorf("the recover of a paused sandbox: %+v", op.Error)
	}
	if op := w.ended(mismatch.Operation.ID); op.State != operation.Failed || op.Error.Code != sandbox.CodeStateMismatch {
		t.Errorf("if_state=paused on a running sandbox: %s %v", op.State, op.Error)
	}
	w.wantBox(box.ID, sandbox.StateRunning, sandbox.StateRunning, "")
	w.wantMachine(box.ID, runs, "")
}

// TestCreateThenPause: a pause that comes during the create waits for it.
func TestCreateThenPause(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := newGate()
	w.gw.setHook(g.at("AwaitReady"))
	acc := w.accept(sandbox.Spec{})
	<-g.reached
	pause := w.asked(sandbox.VerbPause, acc.Sandbox.ID)
	close(g.open)
	if op := w.ended(pause); op.State != operation.Succeeded || op.NoChange {
		t.Errorf("pause: %+v", op)
	}
	w.wantBox(acc.Sandbox.ID, sandbox.StatePaused, sandbox.StatePaused, "")
}

// callsOf has, for each verb, the calls that it makes, in their order.
func callsOf() map[sandbox.Verb][]string {
	return map[sandbox.Verb][]string{
		sandbox.VerbPause:   {"Publish", "PauseMachine", "PauseMachine after"},
		sandbox.VerbResume:  {"ResumeMachine", "ResumeMachine after", "AwaitReady", "Publish"},
		sandbox.VerbRecover: {"EnsureMachine", "AwaitReady", "Publish"},
	}
}

// TestDeleteGoesFirst: a delete ends what is under way and queued, whatever call it is in, and needs no resume.
func TestDeleteGoesFirst(t *testing.T) {
	t.Parallel()
	for verb, calls := range callsOf() {
		for _, call := range calls {
			t.Run(string(verb)+" "+call, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				box := w.ready(verb)
				g := newGate()
				w.node.setHook(g.at(call))
				w.gw.setHook(g.at(call))
				under, queued := w.asked(verb, box.ID), sandbox.OperationID("")
				<-g.reached
				queued = w.asked(sandbox.VerbPause, box.ID)
				w.deleted(box.ID)
				for _, id := range []sandbox.OperationID{under, queued} {
					if op := w.ended(id); op.State != operation.Canceled || op.Error.Code != sandbox.CodeCanceled {
						t.Errorf("%s: %s %v", op.Kind, op.State, op.Error)
					}
				}
				close(g.open)
				w.nothingLeft()
			})
		}
	}
}

// ready makes a sandbox on which verb is legal.
func (w *world) ready(verb sandbox.Verb) sandbox.Sandbox {
	w.t.Helper()
	box := w.running(sandbox.Spec{})
	switch verb {
	case sandbox.VerbResume:
		w.done(sandbox.VerbPause, box.ID)
	case sandbox.VerbRecover:
		w.node.exit(string(box.ID), sandbox.ReasonOOM, "")
		w.eventually("it has failed", func() bool { return w.box(box.ID).State == sandbox.StateFailed })
	}
	return w.box(box.ID)
}

// TestCrashDuringVerbs ends control while each call is under way: the next one goes on, and the verb is done once.
func TestCrashDuringVerbs(t *testing.T) {
	t.Parallel()
	for verb, calls := range callsOf() {
		for _, call := range calls {
			t.Run(string(verb)+" "+call, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				box := w.ready(verb)
				g := newGate()
				w.node.setHook(g.at(call))
				w.gw.setHook(g.at(call))
				under := w.asked(verb, box.ID)
				<-g.reached
				queued := w.asked(verb, box.ID)
				w.crash()
				close(g.open)
				w.startControl()
				if op := w.ended(under); op.State != operation.Succeeded || op.NoChange || op.Attempt != 2 {
					t.Errorf("%s: %+v %v", verb, op, op.Error)
				}
				if op := w.ended(queued); op.State != operation.Succeeded || !op.NoChange || op.Attempt != 1 {
					t.Errorf("the one that waited: %+v %v", op, op.Error)
				}
				w.eventually("control is ready", func() bool { return w.c.Ready(t.Context()) == nil })
				end := verb.Way().End
				w.wantBox(box.ID, end, end, "")
				if end == sandbox.StatePaused {
					w.wantMachine(box.ID, stands, "paused")
				} else {
					w.wantMachine(box.ID, runs, "")
				}
				if n := w.node.did("boot", string(box.ID)); verb == sandbox.VerbRecover && n != 2 {
					t.Errorf("booted %d times, want 2", n)
				}
				if got := w.box(box.ID); verb == sandbox.VerbRecover && got.Generation != box.Generation+1 {
					t.Errorf("generation %d after one recovery of %d", got.Generation, box.Generation)
				}
				w.deleted(box.ID)
				w.nothingLeft()
			})
		}
	}
}

// TestFailuresEndInTheTruth: a verb that fails leaves the sandbox in the state that its machine is in.
func TestFailuresEndInTheTruth(t *testing.T) {
	t.Parallel()
	boom := &sandbox.Error{Code: sandbox.CodeVMMFailed, Message: "boom", Cause: "because"}
	for _, row := range []struct {
		verb    sandbox.Verb
		call    string
		state   sandbox.State
		machine nodev1.MachineState
		held    string
	}{
		{sandbox.VerbPause, "PauseMachine", sandbox.StateRunning, runs, ""},
		{sandbox.VerbPause, "PauseMachine after", sandbox.StateRunning, runs, ""}, // the wish is taken back
		{sandbox.VerbResume, "ResumeMachine", sandbox.StatePaused, stands, "paused"},
		{sandbox.VerbResume, "ResumeMachine after", sandbox.StatePaused, stands, "paused"},
		{sandbox.VerbResume, "AwaitReady", sandbox.StateRunning, runs, ""},
	} {
		t.Run(string(row.verb)+" "+row.call, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			box := w.ready(row.verb)
			w.node.setHook(failing(row.call, boom))
			w.gw.setHook(failing(row.call, boom))
			op := w.ended(w.asked(row.verb, box.ID))
			if op.State != operation.Failed || op.Error.Code != boom.Code || op.Error.Cause != "because" {
				t.Errorf("operation: %s %+v", op.State, op.Error)
			}
			w.wantBox(box.ID, row.state, row.state, "")
			w.wantMachine(box.ID, row.machine, row.held)
			w.node.setHook(nil)
			w.gw.setHook(nil)
			w.done(sandbox.VerbPause, box.ID)
			w.done(sandbox.VerbResume, box.ID)
			w.wantMachine(box.ID, runs, "")
			w.deleted(box.ID)
			w.nothingLeft()
		})
	}
}

// TestNodeAwayInVerb: a verb waits for a node that restarts; one that is away for long makes it fail, where it came from.
func TestNodeAwayInVerb(t *testing.T) {
	t.Parallel()
	for _, verb := range []sandbox.Verb{sandbox.VerbPause, sandbox.VerbResume} {
		t.Run(string(verb), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			box := w.ready(verb)
			w.stopNode()
			id := w.asked(verb, box.ID)
			w.startNode()
			if op := w.ended(id); op.State != operation.Succeeded {
				t.Errorf("over a restart of node: %s %v", op.State, op.Error)
			}
		})
	}
	t.Run("for long", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		box := w.ready(sandbox.VerbPause)
		w.crash()
		w.limits = control.Limits{PauseDeadline: 1}
		w.startControl()
		w.stopNode()
		if op := w.ended(w.asked(sandbox.VerbPause, box.ID)); op.State != operation.Failed || op.Error.Code != sandbox.CodeDeadline {
			t.Errorf("%s %v", op.State, op.Error)
		}
		w.wantBox(box.ID, sandbox.StateRunning, sandbox.StateRunning, "")
		w.startNode()
	})
}

// TestCancelVerbs: what is queued or safe to interrupt can be canceled, and leaves the truth behind.
func TestCancelVerbs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	box := w.ready(sandbox.VerbResume)
	g := newGate()
	w.gw.setHook(g.at("AwaitReady"))
	under := w.asked(sandbox.VerbResume, box.ID)
	<-g.reached
	queued := w.asked(sandbox.VerbPause, box.ID)
	last := w.asked(sandbox.VerbPause, box.ID)
	if op, err := w.c.CancelOperation(t.Context(), queued); err != nil || op.State != operation.Canceled {
		t.Errorf("cancel of a queued one, whose turn has not come: %s %v", op.State, err)
	}
	if got := w.box(box.ID); got.State != sandbox.StateResuming || got.OperationID != under {
		t.Errorf("after that: %s, operation %s, want resuming by %s", got.State, got.OperationID, under)
	}
	op, err := w.c.CancelOperation(t.Context(), under)
	if err != nil || op.State != operation.Canceled {
		t.Errorf("cancel of the running one: %s %v", op.State, err)
	}
	close(g.open)
	if op := w.ended(last); op.State != operation.Succeeded || op.NoChange { // the truth was that it runs
		t.Errorf("the one behind: %+v", op)
	}
	w.wantBox(box.ID, sandbox.StatePaused, sandbox.StatePaused, "")
	w.wantMachine(box.ID, stands, "paused")
}

func TestIdempotentVerbs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	box := w.running(sandbox.Spec{})
	call := w.keyed("k", "POST /v1/sandboxes/x/pause", "")
	first, err := w.ask(sandbox.VerbPause, call, box.ID)
	if err != nil {
		t.Fatal(err)
	}
	w.ended(first.Operation.ID)
	w.done(sandbox.VerbResume, box.ID)
	again, err := w.ask(sandbox.VerbPause, call, box.ID)
	if err != nil || !again.Replayed || again.Operation.ID != first.Operation.ID {
		t.Errorf("replay: %+v %v", again, err)
	}
	w.wantBox(box.ID, sandbox.StateRunning, sandbox.StateRunning, "")
	idle, err := w.ask(sandbox.VerbResume, w.keyed("n", "POST /v1/sandboxes/x/resume", ""), box.ID)
	if err != nil || !idle.Operation.NoChange {
		t.Errorf("no change: %+v %v", idle, err)
	}
	replay, err := w.ask(sandbox.VerbResume, w.keyed("n", "POST /v1/sandboxes/x/resume", ""), box.ID)
	if err != nil || !replay.Replayed || replay.Operation.ID != idle.Operation.ID || !replay.Operation.NoChange {
		t.Errorf("its replay: %+v %v", replay, err)
	}
	wrong := w.call()
	wrong.IfState = sandbox.StatePaused
	_, err = w.ask(sandbox.VerbPause, wrong, box.ID)
	wantCode(t, err, sandbox.CodeStateMismatch)
}

// TestRecoverWaitsForNodeAfterRestart: what was accepted does not fail because control starts before node does.
func TestRecoverWaitsForNodeAfterRestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	box := w.ready(sandbox.VerbRecover)
	g := newGate()
	w.node.setHook(g.at("EnsureMachine"))
	id := w.asked(sandbox.VerbRecover, box.ID)
	<-g.reached
	waits := w.asked(sandbox.VerbRecover, box.ID)
	w.crash()
	w.stopNode()
	close(g.open)
	w.startControl()
	if op, err := w.c.GetOperation(t.Context(), id, 200*time.Millisecond); err != nil || op.State.Ended() {
		t.Errorf("without node: %s %v %v", op.State, op.Error, err)
	}
	w.startNode()
	for _, id := range []sandbox.OperationID{id, waits} {
		if op := w.ended(id); op.State != operation.Succeeded {
			t.Errorf("%s: %s %v", op.Kind, op.State, op.Error)
		}
	}
	w.wantBox(box.ID, sandbox.StateRunning, sandbox.StateRunning, "")
}
