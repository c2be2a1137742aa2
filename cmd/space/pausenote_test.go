package main

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/space-sandbox/space/client"
	"github.com/space-sandbox/space/internal/spacetest"
)

func pauseBox(t *testing.T, i *spacetest.Installation) {
	t.Helper()
	if res, err := i.Client.PauseSandbox(t.Context(), "box", client.Wait(time.Minute)); err != nil || res.Sandbox.State != "paused" {
		t.Fatalf("pause: %+v, %v", res, err)
	}
}

func resumeBox(t *testing.T, i *spacetest.Installation) {
	t.Helper()
	if res, err := i.Client.ResumeSandbox(t.Context(), "box", client.Wait(time.Minute)); err != nil || res.Sandbox.State != "running" {
		t.Fatalf("resume: %+v, %v", res, err)
	}
}

// TestShellOverAPause: the shell says that it waits and goes on; what was typed meanwhile arrives; Ctrl-C leaves it.
func TestShellOverAPause(t *testing.T) {
	t.Parallel()
	i, url := installed(t)
	w := openWindow(t, i, url, shellArgs()...)
	w.until("[0 ready] ")
	pauseBox(t, i)
	w.until("\r\nspace: paused; waiting for resume (Ctrl-C leaves)\r\n")
	w.key("echo mean''while\r")
	resumeBox(t, i)
	w.until("meanwhile\r\n")
	w.until("[0 ready] ")
	pauseBox(t, i)
	w.until("space: paused; waiting for resume")
	w.key("\x03")
	w.until("space attach cmd_")
	w.exit(0)
	resumeBox(t, i)
	list, err := i.Client.ListCommands(t.Context(), "box", client.CommandQuery{States: []string{"running"}})
	if err != nil || len(list.Items) != 1 {
		t.Errorf("the shell does not go on: %+v, %v", list, err)
	}
}

// TestExecOverAPause: the first Ctrl-C leaves a command that stands still, since it could not be told of it.
func TestExecOverAPause(t *testing.T) {
	t.Parallel()
	i, url := installed(t)
	said := &window{t: t, changed: make(chan struct{})}
	cmd := exec.CommandContext(t.Context(), "space", "exec", "box", "--", "sh", "-c", "echo begun; exec sleep 1000")
	cmd.Env = append(os.Environ(), "SPACE_URL="+url, "SPACE_API_KEY="+i.Key)
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said.until("begun\n")
	pauseBox(t, i)
	said.until("space: paused; waiting for resume (Ctrl-C leaves)\n")
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // the code tells
	rest := said.shown.String()
	if code := cmd.ProcessState.ExitCode(); code != exitInterrupted || !strings.Contains(rest, "the command goes on: cmd_") {
		t.Errorf("exit code %d, said %q", code, rest)
	}
}
