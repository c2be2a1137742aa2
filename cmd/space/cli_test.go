package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/creack/pty"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
	"github.com/space-sandbox/space/internal/httpapi/httpapitest"
	"github.com/space-sandbox/space/internal/sandbox"
)

func TestReport(t *testing.T) {
	t.Parallel()
	api := &client.Error{Problem: apiv1.Problem{Code: "name_taken", Message: "taken", Cause: "web", Remedy: "choose another"}}
	house := &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "not set up", Err: errors.New("no file")}
	for _, row := range []struct {
		err  error
		code int
		want string
	}{
		{nil, 0, ""},
		{api, 1, "space: taken (web) — choose another\n"},
		{fmt.Errorf("wrapped: %w", api), 1, "space: taken (web) — choose another\n"},
		{house, 1, "space: not set up (no file)\n"},
		{&client.Error{Problem: apiv1.Problem{Message: "no", Remedy: "GET /v1/sandboxes lists them"}}, 1, "space: no — space ls lists them\n"},
		{&client.Error{Problem: apiv1.Problem{Message: "busy", Remedy: "wait for its create: GET /v1/operations/op_a1?wait=60s"}}, 1,
			"space: busy — wait for its create: space op wait op_a1\n"},
		{errors.New("plain"), 1, "space: plain\n"},
		{errors.New("bell \a and \x1b[31mred\nline"), 1, "space: bell ? and ?[31mred?line\n"},
		{&usageError{err: errors.New("unknown flag"), command: "space ls"}, 2, "space: unknown flag — see space ls --help\n"},
		{&usageError{err: errors.New("unknown flag")}, 2, "space: unknown flag — see space --help\n"},
		{exitStatus(42), 42, ""},
		{errors.Join(api, house), 1, "space: taken (web) — choose another\nspace: not set up (no file)\n"},
		{&url.Error{Op: "Get", URL: "http://x", Err: errors.New("refused")}, 1, "space: SPACE does not answer (refused) — is space up running? SPACE_URL and --url say where to look\n"},
		{&url.Error{Op: "Get", URL: "foo/v1/sandboxes", Err: errors.New("unsupported protocol scheme \"\"")}, 1,
			"space: this is no address of an API (unsupported protocol scheme \"\") — set SPACE_URL or --url to one such as http://127.0.0.1:7070\n"},
	} {
		var buf bytes.Buffer
		if code := report(&buf, row.err); code != row.code || buf.String() != row.want {
			t.Errorf("%v: code %d, %q", row.err, code, buf.String())
		}
	}
}

func TestExitCode(t *testing.T) {
	t.Parallel()
	code := func(n int) *int { return &n }
	for _, row := range []struct {
		exit client.Exit
		want int
	}{
		{client.Exit{State: "exited", ExitCode: code(0)}, 0},
		{client.Exit{State: "exited", ExitCode: code(255)}, 255},
		{client.Exit{State: "exited", ExitCode: code(-1), Signal: "SIGKILL"}, 137},
		{client.Exit{State: "exited", ExitCode: code(-1), Signal: "SIGTERM", Error: &apiv1.CommandError{Code: "deadline_exceeded"}}, 143},
		{client.Exit{State: "failed", Error: &apiv1.CommandError{Code: "command_not_found"}}, 127},
		{client.Exit{State: "failed", Error: &apiv1.CommandError{Code: "permission_denied"}}, 126},
		{client.Exit{State: "failed", Error: &apiv1.CommandError{Code: "cwd_not_found"}}, 125},
		{client.Exit{State: "lost"}, 125},
	} {
		if got := exitCode(row.exit); got != row.want {
			t.Errorf("%+v: %d, want %d", row.exit, got, row.want)
		}
	}
}

func TestParseRemote(t *testing.T) {
	t.Parallel()
	for arg, want := range map[string]remote{
		"box:a":      {"box", "a"},
		"box:":       {"box", ""},
		"box:/a:b/c": {"box", "/a:b/c"},
		"0abc:x":     {"0abc", "x"},
		"./box:a":    {},
		"/box:a":     {},
		"Box:a":      {},
		"file":       {},
		"-":          {},
		":a":         {},
	} {
		if got, ok := parseRemote(arg); got != want || ok != (want.ref != "") {
			t.Errorf("%s: %+v, %v", arg, got, ok)
		}
	}
}

func TestProgressLine(t *testing.T) {
	t.Parallel()
	p := &progress{name: "a\x1b", total: 4 << 20, done: 1 << 20}
	if got := p.line(); got != "a?: 1.0 of 4.0 MiB, 25 %" {
		t.Error(got)
	}
	p.total = 0
	if got := p.line(); got != "a?: 1.0 MiB" {
		t.Error(got)
	}
}

// On a terminal create shows the step under way; the id goes to standard output all the same.
func TestProgressOnTerminal(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	screen, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer screen.Close()
	defer tty.Close()
	c := &cli{std: std{out: &bytes.Buffer{}, err: tty}, output: "text"}
	api := client.New(s.URL, httpapitest.AdminKey)
	made, err := api.CreateSandbox(t.Context(), apiv1.CreateSandbox{Template: httpapitest.TemplateSlow})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		op, err := waitOperation(context.Background(), c, api, made.Operation.ID, "it")
		if err == nil && op.State != "succeeded" {
			err = errors.New(op.State)
		}
		done <- err
	}()
	line, err := bufio.NewReader(screen).ReadString('s')
	if err != nil || !strings.Contains(line, "create: boot, 0 s") {
		t.Errorf("%q, %v", line, err)
	}
	s.Finish()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Ctrl-C ends the waiting for an operation, says what goes on, and nothing more is begun.
func TestInterruptedWait(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	screen, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer screen.Close()
	defer tty.Close()
	cmd := exec.CommandContext(t.Context(), "space", "create", "--template", httpapitest.TemplateSlow)
	cmd.Env = append(os.Environ(), "SPACE_URL="+s.URL, "SPACE_API_KEY="+httpapitest.AdminKey)
	cmd.Stderr = tty
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(screen)
	if line, err := lines.ReadString('s'); err != nil || !strings.Contains(line, "create: boot") {
		t.Errorf("%q, %v", line, err)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // the code tells
	said, err := lines.ReadString('\n')
	if code := cmd.ProcessState.ExitCode(); code != exitInterrupted || err != nil ||
		!regexp.MustCompile(`space: interrupted; the create of sandbox [a-z0-9]{20} goes on — space op wait op_[a-z0-9]{20}\r\n$`).MatchString(said) {
		t.Errorf("exit code %d, said %q, %v", code, said, err)
	}

	var begun []string
	err = every([]string{"a", "b", "c"}, func(arg string) error {
		begun = append(begun, arg)
		if arg == "b" {
			return exitStatus(exitInterrupted)
		}
		return errors.New(arg)
	})
	var out strings.Builder
	if code := report(&out, err); code != exitInterrupted || out.String() != "space: a\n" || len(begun) != 2 {
		t.Errorf("exit code %d, said %q, begun %q", code, out.String(), begun)
	}
}

func TestOperationSteps(t *testing.T) {
	t.Parallel()
	ms := 12.4
	op := apiv1.Operation{ID: "op_1", Kind: "pause", State: "running", Steps: []apiv1.Step{
		{Name: "hold", State: "succeeded", MS: &ms},
		{Name: "machine", State: "running", Attempts: 3, Error: "node does not answer"}}}
	for _, want := range []string{"hold 12 ms, machine running (begun again 3 times): node does not answer\n",
		"hold 12 ms, machine failed 12 ms (begun again 3 times)\nerror:    it failed\n"} {
		var out bytes.Buffer
		if err := printOperation(&cli{std: std{out: &out}}, &op); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%q, %v, want %q", out.String(), err, want)
		}
		op.Steps[1].State, op.Steps[1].MS = "failed", &ms
		op.Error = &apiv1.Problem{Message: "it failed"}
	}
}
