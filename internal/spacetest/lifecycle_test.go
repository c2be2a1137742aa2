package spacetest_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/spacetest"
)

// ask makes a lifecycle call.
func ask(i *spacetest.Installation, ctx context.Context, verb sandbox.Verb, id string, opts ...client.Option) (*apiv1.Lifecycle, error) {
	switch verb {
	case sandbox.VerbPause:
		return i.Client.PauseSandbox(ctx, id, opts...)
	case sandbox.VerbResume:
		return i.Client.ResumeSandbox(ctx, id, opts...)
	case sandbox.VerbRecover:
		return i.Client.RecoverSandbox(ctx, id, opts...)
	}
	return i.Client.DeleteSandbox(ctx, id, opts...)
}

// done makes a call that must succeed.
func done(t *testing.T, i *spacetest.Installation, verb sandbox.Verb, id string) *apiv1.Lifecycle {
	t.Helper()
	res, err := ask(i, t.Context(), verb, id, client.Wait(time.Minute))
	if err != nil || res.Operation.State != "succeeded" {
		t.Fatalf("%s: %+v, %v", verb, res, err)
	}
	return res
}

// fail ends all machines, of which id's is one, behind node's back.
func fail(t *testing.T, i *spacetest.Installation, id string) {
	t.Helper()
	i.Host.Close()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(20 * time.Second); ; {
		if got, err := i.Client.Sandbox(t.Context(), id); err == nil && got.State == "failed" {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("the sandbox never failed")
		}
	}
}

// TestPauseOverRestarts: a command that is paused with its machine goes on where it stood, whatever restarts meanwhile.
func TestPauseOverRestarts(t *testing.T) {
	t.Parallel()
	i := spacetest.Start(t)
	box := create(t, i)
	cmd, err := i.Client.CreateCommand(t.Context(), box.ID, apiv1.CreateCommand{Start: true, Stdin: true,
		Argv: []string{"sh", "-c", "n=0; while read line; do n=$((n+1)); echo $n; done; exit 9"}})
	if err != nil {
		t.Fatal(err)
	}
	var stdin uint64
	offset, want := uint64(0), 0
	for _, restart := range []func(){
		func() {},
		func() { i.Stop("control"); i.StartControl() },
		func() { i.Stop("gateway"); i.StartGateway() },
		func() { i.Stop("node"); i.StartNode() },
	} {
		stdin = writeLine(t, i, cmd.ID, stdin)
		want++
		offset = readLine(t, i, cmd.ID, offset, want)
		done(t, i, sandbox.VerbPause, box.ID)
		restart()
		if _, err := i.Client.WriteStdin(t.Context(), cmd.ID, strings.NewReader("x\n"), client.StdinOptions{}); client.Code(err) != "invalid_state" {
			t.Errorf("standard input of a paused sandbox: %v", err)
		}
		if _, err := i.Client.ReadFile(t.Context(), box.ID, "x", client.FileOptions{}); client.Code(err) != "invalid_state" {
			t.Errorf("files of a paused sandbox: %v", err)
		}
		if got, err := i.Client.Sandbox(t.Context(), box.ID); err != nil || got.State != "paused" {
			t.Errorf("%+v, %v, want paused", got, err)
		}
		done(t, i, sandbox.VerbResume, box.ID)
	}
	if _, err := i.Client.WriteStdin(t.Context(), cmd.ID, strings.NewReader(""), client.StdinOptions{EOF: true}); err != nil {
		t.Fatal(err)
	}
	got, err := i.Client.WaitCommand(t.Context(), cmd.ID)
	if err != nil || got.ExitCode == nil || *got.ExitCode != 9 || got.StdoutBytes != offset {
		t.Errorf("exit: %+v, %v; read %d bytes", got, err, offset)
	}
	done(t, i, sandbox.VerbPause, box.ID)
	remove(t, i, box.ID) // needs no resume
}

// TestVerbsOverHTTP asks every verb in every state in which a sandbox can rest, and finds what the table says.
func TestVerbsOverHTTP(t *testing.T) {
	t.Parallel()
	i := spacetest.Start(t)
	for _, state := range []sandbox.State{sandbox.StateRunning, sandbox.StatePaused, sandbox.StateFailed, sandbox.StateDeleted} {
		for _, way := range sandbox.Verbs() {
			id := create(t, i).ID
			switch state {
			case sandbox.StatePaused:
				done(t, i, sandbox.VerbPause, id)
			case sandbox.StateFailed:
				fail(t, i, id)
			case sandbox.StateDeleted:
				done(t, i, sandbox.VerbDelete, id)
			}
			cell := way.Verb.In(state)
			res, err := ask(i, t.Context(), way.Verb, id, client.Wait(time.Minute))
			e, _ := errors.AsType[*client.Error](err)
			switch {
			case cell.Rule == sandbox.Gone:
				if e == nil || e.Status != 404 {
					t.Errorf("%s %s: %+v %v, want 404", state, way.Verb, res, err)
				}
				continue
			case cell.Rule == sandbox.Refused:
				if e == nil || e.Status != 409 || e.Code != "invalid_state" || !strings.Contains(e.Remedy, string(cell.Helps)) {
					t.Errorf("%s %s: %+v %v, want invalid_state that names %s", state, way.Verb, res, err, cell.Helps)
				}
			case err != nil:
				t.Errorf("%s %s: %v", state, way.Verb, err)
			case res.Operation.NoChange != (cell.Rule == sandbox.Already) || res.Sandbox.State != string(way.End):
				t.Errorf("%s %s: no_change %v, then %s", state, way.Verb, res.Operation.NoChange, res.Sandbox.State)
			}
			if way.Verb != sandbox.VerbDelete {
				done(t, i, sandbox.VerbDelete, id)
			}
		}
	}
	if left := i.Left(); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
}
