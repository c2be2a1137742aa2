package control_test

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/sandbox"
)

func TestCommandLife(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	box := w.running(sandbox.Spec{Template: "base", Env: map[string]string{"A": "sandbox", "B": "sandbox"}})
	made, err := w.c.CreateCommand(t.Context(), w.call(), string(box.ID),
		sandbox.CommandSpec{Argv: []string{"sleep"}, Env: map[string]string{"B": "command"}, Tag: "x"}, false)
	if err != nil {
		t.Fatal(err)
	}
	if made.Command.State != sandbox.CommandCreated || made.Attach.URL != "ws://127.0.0.1:7071/v1/attach/"+string(made.Command.ID) {
		t.Errorf("made: %+v", made)
	}
	claims, err := auth.NewVerifier(w.gw.verifyKey).VerifyAttach(made.Attach.Token, time.Now())
	if err != nil || claims.CommandID != made.Command.ID || claims.SandboxID != box.ID || claims.ProcessID != made.Command.ProcessID {
		t.Errorf("token: %+v %v", claims, err)
	}
	spec := w.guests.spec(string(box.ID), string(made.Command.ProcessID))
	if want := map[string]string{"LANG": "C.UTF-8", "A": "sandbox", "B": "command"}; !maps.Equal(spec.Env, want) || spec.User != "user" || spec.Cwd != "/srv" {
		t.Errorf("what the guest got: %v", spec)
	}
	if got := w.gw.sessions(string(box.ID)); !slices.Equal(got, []string{string(made.Command.ID)}) {
		t.Errorf("sessions %v", got)
	}
	// Somebody attaches: the gateway starts it without asking control.
	if _, err := w.guests.start(string(box.ID), string(made.Command.ProcessID)); err != nil {
		t.Fatal(err)
	}
	w.eventually("the record says running", func() bool {
		cmd, err := w.c.GetCommand(t.Context(), made.Command.ID, 0)
		return err == nil && cmd.State == sandbox.CommandRunning && cmd.PID == 42
	})
	page, err := w.c.ListCommands(t.Context(), string(box.ID), control.CommandFilter{Tag: "x", PID: 42})
	if err != nil || len(page.Items) != 1 {
		t.Errorf("list: %+v %v", page, err)
	}
	short, err := w.c.GetCommand(t.Context(), made.Command.ID, 10*time.Millisecond)
	if err != nil || short.State != sandbox.CommandRunning {
		t.Errorf("a wait that runs out: %+v %v", short, err)
	}
	killed, err := w.c.KillCommand(t.Context(), made.Command.ID)
	if err != nil || killed.Signal != "SIGKILL" {
		t.Errorf("kill: %+v %v", killed, err)
	}
	cmd, err := w.c.GetCommand(t.Context(), made.Command.ID, patience)
	if err != nil || cmd.State != sandbox.CommandExited || *cmd.ExitCode != -1 || cmd.Signal != "SIGKILL" || cmd.EndedAt.IsZero() {
		t.Errorf("after the kill: %+v %v", cmd, err)
	}
	if again, err := w.c.KillCommand(t.Context(), cmd.ID); err != nil || again.State != sandbox.CommandExited {
		t.Errorf("second kill: %+v %v", again, err)
	}
	_, err = w.c.SignalCommand(t.Context(), cmd.ID, "SIGTERM")
	wantCode(t, err, sandbox.CodeNotRunning)
	w.eventually("the result is acknowledged", func() bool { return w.guests.isAcked(string(cmd.ProcessID)) })
}

func TestCommandsThatCannotBe(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	box := w.running(sandbox.Spec{})
	for name, spec := range map[string]sandbox.CommandSpec{
		"no argv":   {},
		"empty":     {Argv: []string{""}},
		"NUL":       {Argv: []string{"a\x00b"}},
		"huge":      {Argv: slices.Repeat([]string{strings.Repeat("x", 1000)}, 1100)},
		"long arg":  {Argv: []string{strings.Repeat("x", 128<<10)}},
		"env":       {Argv: []string{"x"}, Env: map[string]string{"A=B": "x"}},
		"timeout":   {Argv: []string{"x"}, TimeoutSeconds: -1},
		"long tag":  {Argv: []string{"x"}, Tag: strings.Repeat("x", 300)},
		"NUL in wd": {Argv: []string{"x"}, Cwd: "/\x00"},
	} {
		_, err := w.c.CreateCommand(t.Context(), w.call(), string(box.ID), spec, true)
		if got := sandbox.CodeOf(err); got != sandbox.CodeInvalidArgument {
			t.Errorf("%s: %q %v", name, got, err)
		}
	}
	made, err := w.c.CreateCommand(t.Context(), w.call(), string(box.ID), sandbox.CommandSpec{Argv: []string{"missing"}}, true)
	if err != nil || made.Command.State != sandbox.CommandFailed || made.Command.ErrorCode != "command_not_found" {
		t.Errorf("argv that does not exist: %+v %v", made.Command, err)
	}
	res, err := w.c.Exec(t.Context(), w.call(), string(box.ID), sandbox.CommandSpec{Argv: []string{"missing"}}, nil)
	if err != nil || res.Command.State != sandbox.CommandFailed {
		t.Errorf("exec of it: %+v %v", res, err)
	}
	_, err = w.c.CreateCommand(t.Context(), w.call(), "nobody", sandbox.CommandSpec{Argv: []string{"x"}}, true)
	wantCode(t, err, sandbox.CodeNotFound)
	_, err = w.c.GetCommand(t.Context(), sandbox.NewCommandID(), time.Second)
	wantCode(t, err, sandbox.CodeNotFound)
	// A process that cannot be made leaves no session, and its key may be used again.
	w.gw.setHook(failing("CreateProcess", sandbox.Errorf(sandbox.CodeGuestFault, "no")))
	before, err := w.c.ListCommands(t.Context(), string(box.ID), control.CommandFilter{PageRequest: control.PageRequest{Count: true}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.c.CreateCommand(t.Context(), w.keyed("k", "s", "b"), string(box.ID), sandbox.CommandSpec{Argv: []string{"true"}}, false)
	wantCode(t, err, sandbox.CodeGuestFault)
	w.gw.setHook(nil)
	made, err = w.c.CreateCommand(t.Context(), w.keyed("k", "s", "b"), string(box.ID), sandbox.CommandSpec{Argv: []string{"true"}}, false)
	if err != nil || made.Replayed {
		t.Errorf("the second try: %+v %v", made, err)
	}
	after, err := w.c.ListCommands(t.Context(), string(box.ID), control.CommandFilter{PageRequest: control.PageRequest{Count: true}})
	if err != nil || *after.Total != *before.Total+1 {
		t.Errorf("sessions: %d, then %d (%v)", *before.Total, *after.Total, err)
	}
}

func TestExec(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	box := w.running(sandbox.Spec{})
	res, err := w.c.Exec(t.Context(), w.call(), string(box.ID), sandbox.CommandSpec{Argv: []string{"true", "hello", "world"}}, nil)
	if err != nil || string(res.Stdout) != "hello world" || len(res.Stderr) != 0 || *res.Command.ExitCode != 0 || res.Command.StdoutBytes != 11 {
		t.Errorf("%+v %v", res, err)
	}
	w.eventually("the result is acknowledged", func() bool { return w.guests.isAcked(string(res.Command.ProcessID)) })
	input := bytes.Repeat([]byte("0123456789abcdef"), 16384) // 256 KiB: several chunks
	res, err = w.c.Exec(t.Context(), w.call(), string(box.ID), sandbox.CommandSpec{Argv: []string{"cat"}}, input)
	if err != nil || !bytes.Equal(res.Stdout, input) {
		t.Errorf("cat: %d bytes of %d, %v", len(res.Stdout), len(input), err)
	}
	// Standard input that was asked for and is empty ends at once.
	if res, err = w.c.Exec(t.Context(), w.call(), string(box.ID), sandbox.CommandSpec{Argv: []string{"cat"}, Stdin: true}, nil); err != nil || len(res.Stdout) != 0 {
		t.Errorf("empty input: %+v %v", res, err)
	}
	big := bytes.Repeat([]byte("x"), 3<<20)
	if res, err = w.c.Exec(t.Context(), w.call(), string(box.ID), sandbox.CommandSpec{Argv: []string{"cat"}}, big); err != nil || len(res.Stdout) != 1<<20 || res.Command.StdoutBytes != 3<<20 {
		t.Errorf("3 MiB: got %d of %d, %v", len(res.Stdout), res.Command.StdoutBytes, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		res, err := w.c.Exec(ctx, w.call(), string(box.ID), sandbox.CommandSpec{Argv: []string{"sleep"}}, nil)
		if err == nil && res.Command.State != sandbox.CommandRunning {
			err = errors.New("the command is " + string(res.Command.State))
		}
		done <- err
	}()
	w.eventually("it runs", func() bool {
		page, err := w.c.ListCommands(t.Context(), string(box.ID), control.CommandFilter{States: []sandbox.CommandState{sandbox.CommandRunning}})
		return err == nil && len(page.Items) == 1
	})
	cancel()
	if err := <-done; err != nil {
		t.Errorf("a client that does not wait: %v", err)
	}
}

func TestIdempotentExec(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	box := w.running(sandbox.Spec{})
	input := []byte(strings.Repeat("line\n", 50000))
	results := make([]control.ExecResult, 5)
	var wg sync.WaitGroup
	for i := range results {
		wg.Go(func() {
			var err error
			results[i], err = w.c.Exec(t.Context(), w.keyed("k", "exec", "b"), string(box.ID), sandbox.CommandSpec{Argv: []string{"cat"}}, input)
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	fresh := 0
	for _, r := range results {
		if r.Command.ID != results[0].Command.ID || !bytes.Equal(r.Stdout, input) {
			t.Errorf("%s: %d bytes, want %d of the one session", r.Command.ID, len(r.Stdout), len(input))
		}
		if !r.Replayed {
			fresh++
		}
	}
	if n := w.guests.started(string(results[0].Command.ProcessID)); n != 1 || fresh != 1 {
		t.Errorf("started %d times, %d calls say so", n, fresh)
	}
	_, err := w.c.Exec(t.Context(), w.keyed("k", "exec", "other"), string(box.ID), sandbox.CommandSpec{Argv: []string{"true"}}, nil)
	wantCode(t, err, sandbox.CodeIdempotencyConflict)
}

// TestGatewayRestartInExec kills the gateway after each of its calls has taken effect and before it was answered: the
// command runs once, each byte arrives once, the result is whole. Where the command cannot be followed, each step is one
// call.
func TestGatewayRestartInExec(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"CreateProcess", "FollowOutput", "FollowOutput after", "WriteStdin", "WriteStdin after", "FollowOutput end",
		"StartProcess", "StartProcess after", "ReadOutput"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			box := w.running(sandbox.Spec{})
			g := newGate()
			stop := g.at(call)
			w.gw.setHook(func(ctx context.Context, name, id string) error {
				if name == "FollowOutput" && !strings.HasPrefix(call, "FollowOutput") && !strings.HasPrefix(call, "WriteStdin") {
					return sandbox.Errorf(sandbox.CodeCapacity, "too many streams")
				}
				return stop(ctx, name, id)
			})
			input := bytes.Repeat([]byte("0123456789"), 20000)
			type result struct {
				control.ExecResult
				err error
			}
			done := make(chan result, 1)
			go func() {
				res, err := w.c.Exec(t.Context(), w.call(), string(box.ID), sandbox.CommandSpec{Argv: []string{"cat"}}, input)
				done <- result{res, err}
			}()
			<-g.reached
			w.stopGateway()
			w.eventually("control notices", func() bool { return w.c.Ready(t.Context()) != nil })
			w.startGateway()
			res := <-done
			if res.err != nil || !bytes.Equal(res.Stdout, input) || *res.Command.ExitCode != 0 {
				t.Errorf("%d bytes of %d, %+v %v", len(res.Stdout), len(input), res.Command, res.err)
			}
			if n := w.guests.started(string(res.Command.ProcessID)); n != 1 {
				t.Errorf("started %d times", n)
			}
		})
	}
}

// TestExecOfLostMachine: an exec does not wait for a machine that is gone.
func TestExecOfLostMachine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	box := w.running(sandbox.Spec{})
	done := make(chan sandbox.Command, 1)
	go func() {
		res, err := w.c.Exec(t.Context(), w.call(), string(box.ID), sandbox.CommandSpec{Argv: []string{"sleep"}}, nil)
		if err != nil {
			t.Error(err)
		}
		done <- res.Command
	}()
	w.eventually("it runs", func() bool {
		page, err := w.c.ListCommands(t.Context(), string(box.ID), control.CommandFilter{States: []sandbox.CommandState{sandbox.CommandRunning}})
		return err == nil && len(page.Items) == 1
	})
	w.node.exit(string(box.ID), sandbox.ReasonOOM, "")
	if cmd := <-done; cmd.State != sandbox.CommandLost {
		t.Errorf("%+v", cmd)
	}
}

// TestExecOfDeletedSandbox: neither does it wait for a sandbox that is deleted.
func TestExecOfDeletedSandbox(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	box := w.running(sandbox.Spec{})
	done := make(chan error, 1)
	go func() {
		_, err := w.c.Exec(t.Context(), w.call(), string(box.ID), sandbox.CommandSpec{Argv: []string{"sleep"}}, nil)
		done <- err
	}()
	w.eventually("it runs", func() bool {
		page, err := w.c.ListCommands(t.Context(), string(box.ID), control.CommandFilter{States: []sandbox.CommandState{sandbox.CommandRunning}})
		return err == nil && len(page.Items) == 1
	})
	w.deleted(box.ID)
	wantCode(t, <-done, sandbox.CodeNotFound)
}

// TestSyncFindsUnknownSessions: what the agent does not know is lost if it ran, and made again if it did not.
func TestSyncFindsUnknownSessions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	box := w.running(sandbox.Spec{})
	create := func(start bool) sandbox.Command {
		made, err := w.c.CreateCommand(t.Context(), w.call(), string(box.ID), sandbox.CommandSpec{Argv: []string{"sleep"}}, start)
		if err != nil {
			t.Fatal(err)
		}
		return made.Command
	}
	ran, waiting, known := create(true), create(false), create(true)
	w.guests.forget(string(box.ID), string(ran.ProcessID))
	w.guests.forget(string(box.ID), string(waiting.ProcessID))
	w.stopGateway()
	w.startGateway()
	lost, err := w.c.GetCommand(t.Context(), ran.ID, patience)
	if err != nil || lost.State != sandbox.CommandLost || lost.Reason != "vm_exit" {
		t.Errorf("ran: %+v %v", lost, err)
	}
	w.eventually("the waiting one has a process again", func() bool {
		_, err := w.guests.get(string(box.ID), string(waiting.ProcessID))
		return err == nil
	})
	if cmd, err := w.c.GetCommand(t.Context(), known.ID, 0); err != nil || cmd.State != sandbox.CommandRunning {
		t.Errorf("known: %+v %v", cmd, err)
	}
	if cmd, err := w.c.GetCommand(t.Context(), waiting.ID, 0); err != nil || cmd.State != sandbox.CommandCreated {
		t.Errorf("waiting: %+v %v", cmd, err)
	}
}

// TestGatewayAway: calls are refused at once, waits go on.
func TestGatewayAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	box := w.running(sandbox.Spec{})
	started := w.started(box.ID)
	waited := make(chan sandbox.Command, 1)
	go func() {
		cmd, err := w.c.GetCommand(t.Context(), started.ID, patience)
		if err != nil {
			t.Error(err)
		}
		waited <- cmd
	}()
	w.stopGateway()
	w.eventually("control notices", func() bool { return w.c.Ready(t.Context()) != nil })
	_, err := w.c.CreateCommand(t.Context(), w.call(), string(box.ID), sandbox.CommandSpec{Argv: []string{"true"}}, true)
	wantCode(t, err, sandbox.CodeUnavailable)
	_, err = w.c.SignalCommand(t.Context(), started.ID, "SIGTERM")
	wantCode(t, err, sandbox.CodeUnavailable)
	if _, err := w.guests.finish(string(box.ID), string(started.ProcessID), 3, ""); err != nil {
		t.Fatal(err)
	}
	w.startGateway()
	if cmd := <-waited; cmd.State != sandbox.CommandExited || *cmd.ExitCode != 3 {
		t.Errorf("waited for: %+v", cmd)
	}
}

func TestForeignErrorsStayInside(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	box := w.running(sandbox.Spec{})
	w.gw.setHook(failing("SignalProcess", errors.New("secret detail")))
	started := w.started(box.ID)
	_, err := w.c.SignalCommand(t.Context(), started.ID, "SIGTERM")
	wantCode(t, err, sandbox.CodeInternal)
}
