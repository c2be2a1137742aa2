package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
	"github.com/space-sandbox/space/internal/spacetest"
)

// asProgram makes the test binary be the program.
const asProgram = "FIRST_SANDBOX_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

// cut is a transport that ends a run at its n-th request: the server answers it, the program never learns the answer.
type cut struct {
	at   int
	stop context.CancelFunc

	mu    sync.Mutex
	count int
}

var errCut = errors.New("the run was ended here")

// RoundTrip implements http.RoundTripper.
func (c *cut) RoundTrip(r *http.Request) (*http.Response, error) {
	c.mu.Lock()
	c.count++
	here := c.count == c.at
	c.mu.Unlock()
	if !here {
		return http.DefaultTransport.RoundTrip(r)
	}
	resp, err := http.DefaultTransport.RoundTrip(r.WithContext(context.WithoutCancel(r.Context())))
	if err == nil {
		resp.Body.Close()
	}
	c.stop()
	return nil, errCut
}

func newRunner(i *spacetest.Installation, dir string, argv ...string) *runner {
	return &runner{client: client.New(i.Client.BaseURL, i.Key), dir: dir, template: "tiny", argv: argv, cleanup: keep,
		in: bufio.NewReader(strings.NewReader("")), out: io.Discard, err: io.Discard}
}

// once is a command that leaves a mark each time it runs.
func once() []string {
	return []string{"sh", "-c", "echo run >> marks; echo out; echo err >&2; echo more; exit 3"}
}

// TestInterrupted ends a run at each of its requests in turn, and lets the next run go on: there is one sandbox and one
// command, which ran once, and the transcript is whole.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	i := spacetest.Start(t)
	for at := 1; ; at++ {
		dir := t.TempDir()
		ctx, stop := context.WithCancel(t.Context())
		first := newRunner(i, dir, once()...)
		transport := &cut{at: at, stop: stop}
		first.client.HTTPClient = &http.Client{Transport: transport}
		code, err := first.run(ctx)
		interrupted := ctx.Err() != nil
		stop()
		if !interrupted {
			if err != nil || code != 3 || at < 5 {
				t.Fatalf("a run without interruption after %d requests: %d, %v", at-1, code, err)
			}
			return
		}
		if err == nil {
			t.Errorf("request %d: the interrupted run says that all is well", at)
		}
		second := newRunner(i, dir)
		if code, err := second.run(t.Context()); err != nil || code != 3 {
			t.Fatalf("request %d: going on: %d, %v", at, code, err)
		}
		checkRun(t, i, second.state, dir, "out\nmore\n", "err\n")
		third := newRunner(i, dir)
		third.cleanup = remove
		if code, err := third.run(t.Context()); err != nil || code != 3 || third.state.Run != second.state.Run {
			t.Fatalf("request %d: at the end: %d, %v", at, code, err)
		}
		if _, err := i.Client.Sandbox(t.Context(), second.state.SandboxID); !client.IsNotFound(err) {
			t.Errorf("request %d: the sandbox is not deleted: %v", at, err)
		}
	}
}

// checkRun makes sure that nothing was done twice.
func checkRun(t *testing.T, i *spacetest.Installation, s state, dir, stdout, stderr string) {
	t.Helper()
	boxes, err := i.Client.ListSandboxes(t.Context(), client.SandboxQuery{Metadata: map[string]string{"run": s.Run},
		States: []string{"creating", "running", "failed", "deleting", "deleted"}})
	if err != nil || len(boxes.Items) != 1 {
		t.Errorf("sandboxes: %+v, %v, want one", boxes, err)
	}
	commands, err := i.Client.ListCommands(t.Context(), s.SandboxID, client.CommandQuery{})
	if err != nil || len(commands.Items) != 1 {
		t.Errorf("commands: %+v, %v, want one", commands, err)
	}
	res, err := i.Client.Exec(t.Context(), s.SandboxID, apiv1.Exec{Argv: []string{"cat", "marks"}})
	if err != nil || res.Stdout != "run\n" {
		t.Errorf("the command's marks: %q, %v, want one run", res.Stdout, err)
	}
	for name, want := range map[string]string{"stdout": stdout, "stderr": stderr} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v, want %q", name, got, err, want)
		}
	}
}

// slow writes, waits for a go-ahead in the working directory, and goes on.
func slow() []string {
	return []string{"sh", "-c", "echo run >> marks; echo before; until [ -e go ]; do sleep 0.05; done; echo after"}
}

// program is the example as a process of its own.
func program(t *testing.T, i *spacetest.Installation, dir string, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, append([]string{"--template", "tiny", "--dir", dir}, args...)...)
	cmd.Env = append(os.Environ(), asProgram+"=1", "SPACE_URL="+i.Client.BaseURL, "SPACE_API_KEY="+i.Key)
	return cmd
}

// interruptAfter starts cmd, waits for text on its standard output, presses Ctrl-C and returns the exit code.
func interruptAfter(t *testing.T, cmd *exec.Cmd, text string) int {
	t.Helper()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != text {
	}
	if lines.Text() != text {
		t.Fatalf("%q never came: %s", text, stderr.String())
	}
	if err := interrupt(cmd); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() {
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("it ended well, though it was interrupted")
	}
	return cmd.ProcessState.ExitCode()
}

// TestCtrlC interrupts the program in the middle of the output; then it goes on, and asks what to do at the end.
func TestCtrlC(t *testing.T) {
	t.Parallel()
	i := spacetest.Start(t)
	dir := t.TempDir()
	if code := interruptAfter(t, program(t, i, dir, append([]string{"--"}, slow()...)...), "before"); code != exitInterrupted {
		t.Errorf("exit code %d after Ctrl-C", code)
	}
	s, found, err := loadState(dir)
	if err != nil || !found {
		t.Fatalf("state: %t, %v", found, err)
	}
	if _, err := i.Client.WriteFile(t.Context(), s.SandboxID, "go", strings.NewReader(""), client.FileOptions{}); err != nil {
		t.Fatal(err)
	}
	cmd := program(t, i, dir)
	cmd.Stdin = strings.NewReader("what?\nkeep\n")
	out, err := cmd.Output()
	if err != nil || string(out) != "after\n" {
		t.Errorf("the second run: %q, %v", out, err)
	}
	checkRun(t, i, s, dir, "before\nafter\n", "")
	if _, err := program(t, i, dir, "--", "other").Output(); err == nil {
		t.Error("another command in the same directory was accepted")
	}
	if _, err := program(t, i, dir, "--cleanup", "delete").Output(); err != nil {
		t.Errorf("deleting in the end: %v", err)
	}
}

// TestScript does the same with the curl script.
func TestScript(t *testing.T) {
	t.Parallel()
	i := spacetest.Start(t)
	dir := t.TempDir()
	script := func() *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), "./first-sandbox.sh", dir)
		cmd.Env = append(os.Environ(), "SPACE_URL="+i.Client.BaseURL, "SPACE_API_KEY="+i.Key, "TEMPLATE=tiny", "CLEANUP=delete")
		ownGroup(cmd)
		return cmd
	}
	if code := interruptAfter(t, script(), "step 1 of 5"); code != exitInterrupted {
		t.Errorf("exit code %d after Ctrl-C", code)
	}
	out, err := script().Output()
	if err != nil || strings.Contains(string(out), "step 1") || !strings.HasSuffix(string(out), "step 5 of 5\n") {
		t.Errorf("the second run: %q, %v", out, err)
	}
	all, err := os.ReadFile(filepath.Join(dir, "stdout"))
	if err != nil || !strings.HasPrefix(string(all), "hello from Linux") {
		t.Errorf("transcript: %q, %v", all, err)
	}
	for n := 1; n <= 5; n++ {
		if line := fmt.Sprintf("step %d of 5\n", n); strings.Count(string(all), line) != 1 {
			t.Errorf("transcript has %q %d times", line, strings.Count(string(all), line))
		}
	}
	if left := i.Left(); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
}

// TestPause ends a run with a pause; the next one resumes the sandbox, with what it had in memory, in both forms of the
// example.
func TestPause(t *testing.T) {
	t.Parallel()
	i := spacetest.Start(t)
	dir := t.TempDir()
	first := newRunner(i, dir, once()...)
	first.cleanup = pause
	if code, err := first.run(t.Context()); err != nil || code != 3 {
		t.Fatalf("the first run: %d, %v", code, err)
	}
	state := func() string {
		t.Helper()
		box, err := i.Client.Sandbox(t.Context(), first.state.SandboxID)
		if err != nil {
			t.Fatal(err)
		}
		return box.State
	}
	if got := state(); got != "paused" {
		t.Fatalf("after the first run: %s", got)
	}
	second := newRunner(i, dir)
	if code, err := second.run(t.Context()); err != nil || code != 3 || state() != "running" {
		t.Errorf("the second run: %d, %v, the sandbox is %s", code, err, state())
	}
	checkRun(t, i, second.state, dir, "out\nmore\n", "err\n")
}

// TestScriptPauses does the same with the curl script.
func TestScriptPauses(t *testing.T) {
	t.Parallel()
	i := spacetest.Start(t)
	dir := t.TempDir()
	for _, row := range []struct{ cleanup, state string }{{"pause", "paused"}, {"keep", "running"}} {
		cmd := exec.CommandContext(t.Context(), "./first-sandbox.sh", dir)
		cmd.Env = append(os.Environ(), "SPACE_URL="+i.Client.BaseURL, "SPACE_API_KEY="+i.Key, "TEMPLATE=tiny", "CLEANUP="+row.cleanup)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %s, %v", row.cleanup, out, err)
		}
		boxes, err := i.Client.ListSandboxes(t.Context(), client.SandboxQuery{States: []string{row.state}})
		if err != nil || len(boxes.Items) != 1 {
			t.Errorf("%s: %+v, %v, want one that is %s", row.cleanup, boxes, err, row.state)
		}
	}
}
