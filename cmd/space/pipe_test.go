package main

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
	"github.com/space-sandbox/space/internal/spacetest"
)

// spaceCmd is space as a program of its own.
func spaceCmd(t *testing.T, i *spacetest.Installation, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "space", args...)
	cmd.Env = append(os.Environ(), "SPACE_URL="+i.Client.BaseURL, "SPACE_API_KEY="+i.Key)
	return cmd
}

// TestExecIntoAPipeThatBreaks: the command ends when nobody reads its output any more, as it would in a pipe here.
func TestExecIntoAPipeThatBreaks(t *testing.T) {
	t.Parallel()
	i, _ := installed(t)
	cmd := spaceCmd(t, i, "exec", "box", "--tag", "endless", "--", "sh", "-c", "while echo line; do :; done")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd.Stdout = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if _, err := r.Read(make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	r.Close()
	_ = cmd.Wait() // the code tells
	if code := cmd.ProcessState.ExitCode(); code != exitSignal+int(unix.SIGPIPE) {
		t.Errorf("exit code %d", code)
	}
	list, err := i.Client.ListCommands(t.Context(), "box", client.CommandQuery{Tag: "endless"})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	if got, err := i.Client.Command(t.Context(), list.Items[0].ID, client.Wait(time.Minute)); err != nil || !got.Ended() || deref(got.Signal) != "SIGPIPE" {
		t.Errorf("the command: %+v, %v", got, err)
	}
}

// TestExecArgumentsThatAreNoText are refused before anything happens, not passed on as something else.
func TestExecArgumentsThatAreNoText(t *testing.T) {
	t.Parallel()
	i, _ := installed(t)
	for _, args := range [][]string{
		{"exec", "box", "--", "echo", "\xff"},
		{"exec", "box", "-o", "json", "--", "echo", "\xff"},
		{"exec", "box", "-d", "-e", "A=\xff", "--", "echo"},
	} {
		cmd := spaceCmd(t, i, args...)
		var errs bytes.Buffer
		cmd.Stderr = &errs
		if out, err := cmd.Output(); err == nil || len(out) != 0 || !strings.Contains(errs.String(), "not UTF-8") {
			t.Errorf("%q: %q, %q, %v", args, out, errs.String(), err)
		}
	}
	list, err := i.Client.ListCommands(t.Context(), "box", client.CommandQuery{})
	if err != nil || len(list.Items) != 0 {
		t.Errorf("sessions were made: %+v, %v", list, err)
	}
	if res, err := i.Client.Exec(t.Context(), "box", apiv1.Exec{Argv: []string{"printf", "%s", "grüße €"}}); err != nil || res.Stdout != "grüße €" {
		t.Errorf("text: %+v, %v", res, err)
	}
}
