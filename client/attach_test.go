package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
)

// buffer is an io.Writer that a test can wait on.
type buffer struct {
	mu      sync.Mutex
	changed chan struct{}
	data    bytes.Buffer
}

func newBuffer() *buffer { return &buffer{changed: make(chan struct{})} }

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.changed)
	b.changed = make(chan struct{})
	return b.data.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.String()
}

// await waits until the content satisfies ok.
func (b *buffer) await(t *testing.T, ok func(string) bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for {
		b.mu.Lock()
		done, changed := ok(b.data.String()), b.changed
		b.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("still %q", b)
		}
	}
}

// run creates a command and attaches to it.
func run(t *testing.T, c *client.Client, stdin bool, argv ...string) (*client.Attachment, *buffer, *buffer, string) {
	t.Helper()
	made, err := c.CreateCommand(t.Context(), "box", apiv1.CreateCommand{Argv: argv, Stdin: stdin})
	if err != nil {
		t.Fatal(err)
	}
	stdout, stderr := newBuffer(), newBuffer()
	a, err := c.Attach(t.Context(), made.ID, client.AttachOptions{Stdout: stdout, Stderr: stderr, Token: &made.Attach})
	if err != nil {
		t.Fatal(err)
	}
	return a, stdout, stderr, made.ID
}

func exitCode(t *testing.T, a *client.Attachment) int {
	t.Helper()
	exit, err := a.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if exit.ExitCode == nil {
		t.Fatalf("%+v", exit)
	}
	return *exit.ExitCode
}

func TestAttachOutput(t *testing.T) {
	t.Parallel()
	_, c, _ := box(t)
	a, stdout, stderr, _ := run(t, c, false, "echo", "hi")
	if code := exitCode(t, a); code != 0 || stdout.String() != "hi\n" || stderr.String() != "" {
		t.Errorf("%d %q %q", code, stdout, stderr)
	}
	a, stdout, stderr, id := run(t, c, false, "warn", "oops")
	if code := exitCode(t, a); code != 0 || stdout.String() != "" || stderr.String() != "oops\n" {
		t.Errorf("%d %q %q", code, stdout, stderr)
	}
	// A session that has ended can still be read, also from the middle, and without asking for a token first.
	late := newBuffer()
	a, err := c.Attach(t.Context(), id, client.AttachOptions{Stderr: late, StderrOffset: 2})
	if err != nil {
		t.Fatal(err)
	}
	if code := exitCode(t, a); code != 0 || late.String() != "ps\n" {
		t.Errorf("%d %q", code, late)
	}
}

func TestAttachExits(t *testing.T) {
	t.Parallel()
	_, c, _ := box(t)
	a, _, _, _ := run(t, c, false, "exit", "42")
	if code := exitCode(t, a); code != 42 {
		t.Errorf("%d", code)
	}
	a, _, _, _ = run(t, c, false, "nope")
	exit, err := a.Wait()
	if err != nil || exit.State != "failed" || exit.Error.Code != "command_not_found" || exit.ExitCode != nil {
		t.Errorf("%+v, %v", exit, err)
	}
	a, stdout, _, id := run(t, c, false, "die")
	stdout.await(t, func(s string) bool { return s == "ready\n" })
	if _, err := c.Signal(t.Context(), id, "SIGTERM"); err != nil {
		t.Fatal(err)
	}
	if exit, err := a.Wait(); err != nil || exit.Signal != "SIGTERM" || *exit.ExitCode != -1 {
		t.Errorf("%+v, %v", exit, err)
	}
}

func TestAttachStdin(t *testing.T) {
	t.Parallel()
	_, c, _ := box(t)
	a, stdout, _, _ := run(t, c, true, "lines")
	for _, line := range []string{"one\n", "two\n"} {
		if _, err := io.WriteString(a, line); err != nil {
			t.Fatal(err)
		}
		stdout.await(t, func(s string) bool { return strings.HasSuffix(s, "got "+line) })
	}
	a.CloseStdin()
	if _, err := io.WriteString(a, "late"); err == nil {
		t.Error("written after the end")
	}
	if code := exitCode(t, a); code != 0 || stdout.String() != "got one\ngot two\n" {
		t.Errorf("%d %q", code, stdout)
	}
	if _, err := a.Write([]byte("x")); err == nil {
		t.Error("written after the exit")
	}
}

// TestDetach leaves a session right after writing to it: what was written gets there, and the session goes on.
func TestDetach(t *testing.T) {
	t.Parallel()
	_, c, _ := box(t)
	a, _, _, id := run(t, c, true, "lines")
	var want strings.Builder
	for n := range 2000 {
		line := fmt.Sprintf("line %d\n", n)
		want.WriteString("got " + line)
		if _, err := a.Write([]byte(line)); err != nil {
			t.Fatal(err)
		}
	}
	a.Detach()
	if exit, err := a.Wait(); !errors.Is(err, client.ErrDetached) {
		t.Fatalf("%+v, %v", exit, err)
	}
	if _, err := a.Write([]byte("too late\n")); err == nil {
		t.Error("a write after Detach succeeds")
	}
	out := newBuffer()
	b, err := c.Attach(t.Context(), id, client.AttachOptions{Stdout: out})
	if err != nil {
		t.Fatal(err)
	}
	b.CloseStdin()
	if code := exitCode(t, b); code != 0 || out.String() != want.String() {
		t.Errorf("exit code %d, %d bytes of output, want %d", code, len(out.String()), want.Len())
	}
}

// The connection breaks again and again: every byte arrives once, in both directions.
func TestAttachSurvivesBrokenConnections(t *testing.T) {
	t.Parallel()
	s, c, _ := box(t)
	a, stdout, _, _ := run(t, c, true, "lines")
	var want strings.Builder
	for i := range 8 {
		line := fmt.Sprintf("line %d\n", i)
		if _, err := io.WriteString(a, line); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&want, "got %s", line)
		if i%2 == 1 { // with and without the line having arrived
			stdout.await(t, func(s string) bool { return s == want.String() })
		}
		s.DropAttachments()
	}
	a.CloseStdin()
	if code := exitCode(t, a); code != 0 || stdout.String() != want.String() {
		t.Errorf("%d %q", code, stdout)
	}
}

// Much input, more than is kept, over connections that break.
func TestAttachMuchInput(t *testing.T) {
	t.Parallel()
	s, c, _ := box(t)
	a, stdout, _, _ := run(t, c, true, "cat")
	content := bytes.Repeat([]byte("0123456789abcde\n"), 10<<20/16)
	for i := 0; i < len(content); i += 1 << 20 {
		if _, err := a.Write(content[i : i+1<<20]); err != nil {
			t.Fatal(err)
		}
		s.DropAttachments()
	}
	a.CloseStdin()
	if code := exitCode(t, a); code != 0 || stdout.String() != string(content) {
		t.Errorf("%d, %d bytes of %d", code, len(stdout.String()), len(content))
	}
}

func TestAttachEndsWithContext(t *testing.T) {
	t.Parallel()
	_, c, _ := box(t)
	made, err := c.CreateCommand(t.Context(), "box", apiv1.CreateCommand{Argv: []string{"trap"}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stdout := newBuffer()
	a, err := c.Attach(ctx, made.ID, client.AttachOptions{Stdout: stdout})
	if err != nil {
		t.Fatal(err)
	}
	stdout.await(t, func(s string) bool { return s == "ready\n" })
	cancel()
	if exit, err := a.Wait(); exit != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("%+v, %v", exit, err)
	}
	if cmd, err := c.Command(t.Context(), made.ID); err != nil || cmd.State != "running" {
		t.Errorf("%+v, %v", cmd, err)
	}
}

func TestAttachEndsWithItsWriter(t *testing.T) {
	t.Parallel()
	_, c, _ := box(t)
	made, err := c.CreateCommand(t.Context(), "box", apiv1.CreateCommand{Argv: []string{"echo"}})
	if err != nil {
		t.Fatal(err)
	}
	r, w := io.Pipe()
	r.CloseWithError(errors.New("full"))
	a, err := c.Attach(t.Context(), made.ID, client.AttachOptions{Stdout: w})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Wait(); err == nil || err.Error() != "write the output: full" {
		t.Errorf("%v", err)
	}
}

func TestAttachRefused(t *testing.T) {
	t.Parallel()
	_, c, _ := box(t)
	if _, err := c.Attach(t.Context(), "cmd_aaaaaaaaaaaaaaaaaaaa", client.AttachOptions{}); !client.IsNotFound(err) {
		t.Errorf("%v", err)
	}
	// A token that is not good any more is replaced, once.
	made, err := c.CreateCommand(t.Context(), "box", apiv1.CreateCommand{Argv: []string{"echo"}})
	if err != nil {
		t.Fatal(err)
	}
	old := made.Attach
	old.Token = "expired"
	a, err := c.Attach(t.Context(), made.ID, client.AttachOptions{Token: &old})
	if err != nil {
		t.Fatal(err)
	}
	exitCode(t, a)
}

func TestOutput(t *testing.T) {
	t.Parallel()
	_, c, _ := box(t)
	made, err := c.CreateCommand(t.Context(), "box", apiv1.CreateCommand{Argv: []string{"echo", "hello"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		token *apiv1.Attach
		opts  client.OutputOptions
		want  string
	}{
		{&made.Attach, client.OutputOptions{Follow: true}, "hello\n"},
		{nil, client.OutputOptions{Offset: 3}, "lo\n"},
		{nil, client.OutputOptions{Stream: "stderr"}, ""},
	} {
		out, err := c.Output(t.Context(), made.ID, row.token, row.opts)
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(out)
		out.Close()
		if err != nil || string(data) != row.want {
			t.Errorf("%+v: %q, %v", row.opts, data, err)
		}
	}
	if _, err := c.Output(t.Context(), made.ID, &apiv1.Attach{URL: made.Attach.URL, Token: "bad"}, client.OutputOptions{}); client.Code(err) != "unauthenticated" {
		t.Errorf("%v", err)
	}
	if _, err := c.Output(t.Context(), made.ID, &apiv1.Attach{URL: "ftp://x"}, client.OutputOptions{}); err == nil {
		t.Error("a data plane of another protocol was accepted")
	}
}

// script is a data plane that plays one list of frames per connection, then closes with a code.
type script struct {
	connections [][]any // []byte is sent as it is, anything else as a control frame; an int closes with this code
	queries     chan string
}

func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.queries <- r.URL.RawQuery
	frames := s.connections[0]
	s.connections = s.connections[1:]
	if len(frames) == 1 && frames[0] == refused {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusConflict)
		_, _ = io.WriteString(w, `{"status":409,"code":"invalid_state","message":"the sandbox is paused"}`)
		return
	}
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{apiv1.AttachProtocol}})
	if err != nil {
		return
	}
	defer conn.CloseNow()
	for _, f := range frames {
		switch f := f.(type) {
		case int:
			_ = conn.Close(websocket.StatusCode(f), "because")
			return
		case []byte:
			_ = conn.Write(r.Context(), websocket.MessageBinary, f)
		default:
			body, err := json.Marshal(f)
			if err != nil {
				panic(err)
			}
			_ = conn.Write(r.Context(), websocket.MessageBinary, append([]byte{apiv1.ChannelControl}, body...))
		}
	}
}

// refused is a connection that the data plane refuses because the sandbox is paused.
const refused = "refused"

type gap struct {
	channel  byte
	from, to uint64
}

// follow attaches to a script.
func (s *script) follow(t *testing.T, c *client.Client) (exit *client.Exit, stdout string, gaps []gap, err error) {
	t.Helper()
	s.queries = make(chan string, len(s.connections))
	server := httptest.NewServer(s)
	defer server.Close()
	made, err := c.CreateCommand(t.Context(), "box", apiv1.CreateCommand{Argv: []string{"trap"}})
	if err != nil {
		t.Fatal(err)
	}
	out := newBuffer()
	a, err := c.Attach(t.Context(), made.ID, client.AttachOptions{Stdout: out, Token: &apiv1.Attach{URL: "ws" + strings.TrimPrefix(server.URL, "http"), Token: "x"},
		OnGap: func(channel byte, from, to uint64) { gaps = append(gaps, gap{channel, from, to}) }})
	if err != nil {
		t.Fatal(err)
	}
	exit, err = a.Wait()
	close(s.queries)
	return exit, out.String(), gaps, err
}

func started(stdout, stderr, stdin int) map[string]any {
	return map[string]any{"type": "started", "pid": 1, "epoch": 1, "stdout_offset": stdout, "stderr_offset": stderr, "stdin_offset": stdin}
}

func stdoutFrame(s string) []byte { return append([]byte{apiv1.ChannelStdout}, s...) }

var exitZero = map[string]any{"type": "exit", "state": "exited", "exit_code": 0, "signal": nil, "error": nil}

func TestAttachGapsAndOverlaps(t *testing.T) {
	t.Parallel()
	_, c, _ := box(t)
	s := &script{connections: [][]any{
		{started(0, 0, 0), stdoutFrame("abc"), map[string]any{"type": "gap", "channel": 1, "from": 3, "to": 10}, stdoutFrame("kl"), map[string]any{"type": "later"}, 1001},
		{started(10, 0, 0), stdoutFrame("klm"), 1012}, // begins earlier than asked: the overlap is not passed on
		{started(13, 0, 0), map[string]any{"type": "gap", "channel": 2, "from": 0, "to": 5}, stdoutFrame("n"), exitZero, 4000},
	}}
	exit, stdout, gaps, err := s.follow(t, c)
	if err != nil || *exit.ExitCode != 0 || stdout != "abcklmn" {
		t.Errorf("%+v %q %v", exit, stdout, err)
	}
	if fmt.Sprint(gaps) != fmt.Sprint([]gap{{1, 3, 10}, {2, 0, 5}}) {
		t.Errorf("%v", gaps)
	}
	want := []string{"stderr_offset=0&stdout_offset=0", "stderr_offset=0&stdout_offset=12", "stderr_offset=0&stdout_offset=13"}
	for q := range s.queries {
		if q != want[0] {
			t.Errorf("%q, want %q", q, want[0])
		}
		want = want[1:]
	}
}

func TestAttachEndsForGood(t *testing.T) {
	t.Parallel()
	_, c, _ := box(t)
	for name, row := range map[string]struct {
		frames []any
		want   string
	}{
		"taken over": {[]any{started(0, 0, 0), apiv1.CloseTakenOver}, "because"},
		"lost":       {[]any{started(0, 0, 0), apiv1.CloseLost}, "because"},
		"policy":     {[]any{started(0, 0, 0), int(websocket.StatusPolicyViolation)}, "because"},
		"nonsense":   {[]any{append([]byte{apiv1.ChannelControl}, "{"...)}, "does not speak space.attach.v1"},
		"empty":      {[]any{[]byte{}}, "empty frame"},
		"huge":       {[]any{started(0, 0, 0), make([]byte, 1<<20+1)}, "too big"},
	} {
		s := &script{connections: [][]any{row.frames}}
		exit, _, _, err := s.follow(t, c)
		if exit != nil || err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %+v, %v", name, exit, err)
		}
	}
}

// Input that the process accepted and then had not is never made up.
func TestAttachLostInput(t *testing.T) {
	t.Parallel()
	_, c, _ := box(t)
	s := &script{connections: [][]any{{started(0, 0, 7), 1001}, {started(0, 0, 6), 1001}}}
	if _, _, _, err := s.follow(t, c); err == nil || !strings.Contains(err.Error(), "was lost with the connection") {
		t.Errorf("%v", err)
	}
}

func ExampleClient_Attach() {
	ctx := context.Background()
	c := client.New(client.DefaultURL, "e2b_…")
	cmd, err := c.CreateCommand(ctx, "my-sandbox", apiv1.CreateCommand{Argv: []string{"python3", "-i"}, Stdin: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	var out bytes.Buffer
	a, err := c.Attach(ctx, cmd.ID, client.AttachOptions{Stdout: &out, Token: &cmd.Attach})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Fprintln(a, "print(6 * 7)")
	a.CloseStdin()
	exit, err := a.Wait()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(*exit.ExitCode, out.String())
}

func ExampleClient_CreateSandbox() {
	ctx := context.Background()
	c := client.New(client.DefaultURL, "e2b_…")
	made, err := c.CreateSandbox(ctx, apiv1.CreateSandbox{Template: "base", Name: "my-sandbox"}, client.Wait(time.Minute))
	if err != nil {
		fmt.Println(err) // what happened and why; errors.As with *client.Error has the remedy
		return
	}
	result, err := c.Exec(ctx, made.Sandbox.ID, apiv1.Exec{Argv: []string{"uname", "-r"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(result.Stdout)
}

func ExampleClient_WriteFile() {
	ctx := context.Background()
	c := client.New(client.DefaultURL, "e2b_…")
	w, err := c.WriteFile(ctx, "my-sandbox", "notes.txt", strings.NewReader("remember\n"), client.FileOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(w.SizeBytes, w.SHA256)
}
