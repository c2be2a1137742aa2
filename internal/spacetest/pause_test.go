package spacetest_test

import (
	"bytes"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
	"github.com/space-sandbox/space/internal/spacetest"
)

func pause(t *testing.T, i *spacetest.Installation, id string) {
	t.Helper()
	if res, err := i.Client.PauseSandbox(t.Context(), id, client.Wait(time.Minute)); err != nil || res.Sandbox.State != "paused" {
		t.Fatalf("pause: %+v, %v", res, err)
	}
}

func resume(t *testing.T, i *spacetest.Installation, id string) {
	t.Helper()
	if res, err := i.Client.ResumeSandbox(t.Context(), id, client.Wait(time.Minute)); err != nil || res.Sandbox.State != "running" {
		t.Fatalf("resume: %+v, %v", res, err)
	}
}

// screen takes what an attachment shows.
type screen struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

func (s *screen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

func (s *screen) await(t *testing.T, want string) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for s.text() != want {
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatalf("shown %q, want %q", s.text(), want)
		}
	}
}

// TestSessionsOverPauses: an attachment of the SDK, a recording and an exec last over pauses, and over restarts of each
// part while the sandbox stands still: each byte comes once, in both directions.
func TestSessionsOverPauses(t *testing.T) {
	t.Parallel()
	i := spacetest.Start(t)
	box := create(t, i)
	made, err := i.Client.CreateCommand(t.Context(), box.ID, apiv1.CreateCommand{Stdin: true, Record: true,
		Argv: []string{"sh", "-c", "while read line; do echo got $line; done; exit 9"}})
	if err != nil {
		t.Fatal(err)
	}
	shown, paused := &screen{}, make(chan string, 8)
	a, err := i.Client.Attach(t.Context(), made.ID, client.AttachOptions{Stdout: shown, Token: &made.Attach,
		OnPaused: func(reason string) error { paused <- reason; return nil }})
	if err != nil {
		t.Fatal(err)
	}
	executed := make(chan *apiv1.ExecResult, 1)
	go func() {
		res, err := i.Client.Exec(t.Context(), box.ID, apiv1.Exec{Argv: []string{"sh", "-c", "until [ -e done ]; do sleep 0.02; done; echo over; exit 3"}, Tag: "waits"})
		if err != nil {
			t.Errorf("exec: %v", err)
		}
		executed <- res
	}()
	running := func() bool {
		list, err := i.Client.ListCommands(t.Context(), box.ID, client.CommandQuery{Tag: "waits", States: []string{"running"}})
		return err == nil && len(list.Items) == 1
	}
	for !running() {
		if t.Context().Err() != nil {
			t.Fatal("the exec does not run")
		}
	}
	want := ""
	for n, meanwhile := range []func(){
		func() {},
		func() { i.Stop("gateway"); i.StartGateway() },
		func() { i.Stop("node"); i.StartNode() },
	} {
		if _, err := io.WriteString(a, "before\n"); err != nil {
			t.Fatal(err)
		}
		want += "got before\n"
		shown.await(t, want)
		pause(t, i, box.ID)
		if reason := <-paused; reason != "paused" {
			t.Errorf("pause %d: told %q", n, reason)
		}
		if _, err := io.WriteString(a, "meanwhile\n"); err != nil { // it waits with us
			t.Fatal(err)
		}
		meanwhile()
		if cmd, err := i.Client.Command(t.Context(), made.ID); err != nil || cmd.State != "running" {
			t.Errorf("pause %d: the command is %+v, %v", n, cmd, err)
		}
		if _, err := i.Client.WriteFile(t.Context(), box.ID, "x", strings.NewReader("x"), client.FileOptions{}); client.Code(err) != "invalid_state" {
			t.Errorf("pause %d: a file: %v", n, err)
		}
		resume(t, i, box.ID)
		want += "got meanwhile\n"
		shown.await(t, want)
	}
	a.CloseStdin()
	if exit, err := a.Wait(); err != nil || exit.ExitCode == nil || *exit.ExitCode != 9 || shown.text() != want {
		t.Errorf("exit: %+v, %v; shown %q", exit, err, shown.text())
	}
	if _, err := i.Client.WriteFile(t.Context(), box.ID, "done", strings.NewReader(""), client.FileOptions{}); err != nil {
		t.Fatal(err)
	}
	if res := <-executed; res == nil || res.Stdout != "over\n" || res.ExitCode == nil || *res.ExitCode != 3 {
		t.Errorf("exec: %+v", res)
	}
	if said, result := recorded(t, i, made.ID); said["stdout"] != want || result.State != "exited" || *result.ExitCode != 9 {
		t.Errorf("recorded %q, %+v", said, result)
	}
	remove(t, i, box.ID)
}
