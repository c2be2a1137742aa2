//go:build realvm

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
)

// TestSessions is what command sessions do on one microVM.
func TestSessions(t *testing.T) {
	t.Parallel()
	i := install(t)
	i.start()
	i.create(apiv1.CreateSandbox{Name: "sessions"})
	t.Run("shell", func(t *testing.T) { testShell(t, i) })
	t.Run("bytes", func(t *testing.T) { testTerminalBytes(t, i) })
	t.Run("takeover", func(t *testing.T) { testTakeover(t, i) })
	t.Run("exec", func(t *testing.T) { testExecOnTerminal(t, i) })
	t.Run("deadline", func(t *testing.T) { testDeadline(t, i) })
	t.Run("delete before start", func(t *testing.T) { testDeleteBeforeStart(t, i) })
	t.Run("restarts", func(t *testing.T) { testTerminalOverRestarts(t, i) })
	recorded := i.exec("sessions", apiv1.Exec{Argv: []string{"sh", "-c", "printf 'all \\000\\377 bytes'; echo err >&2; exit 3"}, Record: true})
	i.delete("sessions")
	testTranscript(t, i, recorded.ID)
}

// testTranscript reads what was recorded in a sandbox that is gone.
func testTranscript(t *testing.T, i *installation, id string) {
	tr, err := i.client.Transcript(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	said := map[string]string{}
	var last apiv1.TranscriptEntry
	for {
		e, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		said[e.Stream] += string(e.Data)
		last = e
	}
	if said["stdout"] != "all \x00\xff bytes" || said["stderr"] != "err\n" || last.Type != "result" || last.ExitCode == nil || *last.ExitCode != 3 {
		t.Errorf("said %q, result %+v", said, last)
	}
	if out, err := i.space(t.Context(), "logs", id); err != nil || out != "all \x00\xff byteserr\n" {
		t.Errorf("space logs: %q, %v", out, err)
	}
}

// window is a terminal on the host.
type window struct {
	t       *testing.T
	file    *os.File
	mu      sync.Mutex
	changed chan struct{}
	shown   bytes.Buffer
}

func (w *window) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.changed)
	w.changed = make(chan struct{})
	return w.shown.Write(p)
}

// until waits until text is shown after everything waited for before.
func (w *window) until(text string) {
	w.t.Helper()
	deadline := time.After(time.Minute)
	for {
		w.mu.Lock()
		at, changed := bytes.Index(w.shown.Bytes(), []byte(text)), w.changed
		if at >= 0 {
			w.shown.Next(at + len(text))
		}
		rest := w.shown.String()
		w.mu.Unlock()
		if at >= 0 {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			w.t.Fatalf("%q is not shown; shown: %q", text, rest)
		}
	}
}

func (w *window) key(keys string) {
	w.t.Helper()
	if _, err := w.file.WriteString(keys); err != nil {
		w.t.Fatal(err)
	}
}

// testShell works in `space shell` as a person does: job control, keys, sizes.
func testShell(t *testing.T, i *installation) {
	cmd := exec.CommandContext(t.Context(), filepath.Join(i.bin, "space"), "--data-dir", i.dir, "shell", "sessions",
		"-e", "PS1=[$? ready] ", "--", "sh", "-i")
	cmd.Env = append(os.Environ(), "SPACE_URL="+i.url, "TERM=xterm-256color")
	f, err := pty.StartWithSize(cmd, &pty.Winsize{Cols: 100, Rows: 30})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := &window{t: t, file: f, changed: make(chan struct{})}
	go func() { _, _ = io.Copy(w, f) }() // ends with space
	w.until("[0 ready] ")
	w.key("stty size; echo $TERM; tty; id -un\r")
	w.until("30 100\r\nxterm-256color\r\n/dev/pts/")
	w.until("user\r\n")
	w.until("[0 ready] ")
	w.key("sh -c 'echo be''gun; exec sleep 1000'\r")
	w.until("begun\r\n")
	w.key("\x03")
	w.until("[130 ready] ")
	w.key("cat\r")
	w.until("cat\r\n")
	w.key("there\r")
	w.until("there\r\nthere\r\n")
	w.key("\x1a")
	w.until("Stopped")
	w.until("ready] ")
	w.key("fg\r")
	w.until("cat\r\n")
	w.key("\x04")
	w.until("[0 ready] ")
	if err := pty.Setsize(f, &pty.Winsize{Cols: 132, Rows: 43}); err != nil {
		t.Fatal(err)
	}
	w.key("until [ \"$(stty size)\" = '43 132' ]; do sleep 0.1; done; echo resized\r")
	w.until("\nresized\r\n")
	w.until("[0 ready] ") // else the echo of what is typed comes before the prompt
	w.key("echo grüße €\r")
	w.until("\ngrüße €\r\n")
	w.key("exit 7\r")
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 7 {
		t.Errorf("exit code %d (%v), want 7", cmd.ProcessState.ExitCode(), err)
	}
}

// testTerminalBytes sends every byte value through a raw terminal and back.
func testTerminalBytes(t *testing.T, i *installation) {
	all := make([]byte, 1024)
	for n := range all {
		all[n] = byte(n)
	}
	made, err := i.client.CreateCommand(t.Context(), "sessions", apiv1.CreateCommand{PTY: &apiv1.PTY{Cols: 80, Rows: 24},
		Argv: []string{"sh", "-c", "stty raw -echo; echo ready; exec head -c 1024"}})
	if err != nil {
		t.Fatal(err)
	}
	w := &window{t: t, changed: make(chan struct{})}
	a, err := i.client.Attach(t.Context(), made.ID, client.AttachOptions{Stdout: w})
	if err != nil {
		t.Fatal(err)
	}
	w.until("ready\n")
	if _, err := a.Write(all); err != nil {
		t.Fatal(err)
	}
	exit, err := a.Wait()
	if err != nil || *exit.ExitCode != 0 || !bytes.Equal(w.shown.Bytes(), all) {
		t.Errorf("exit %+v, %v; %d bytes came back: %q", exit, err, w.shown.Len(), w.shown.Bytes())
	}
	out, err := i.client.Output(t.Context(), made.ID, nil, client.OutputOptions{Stream: "pty", Offset: 6})
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if got, err := io.ReadAll(out); err != nil || !bytes.Equal(got, all) {
		t.Errorf("stream=pty: %d bytes, %v", len(got), err)
	}
}

func testTakeover(t *testing.T, i *installation) {
	made, err := i.client.CreateCommand(t.Context(), "sessions", apiv1.CreateCommand{Stdin: true, Argv: []string{"cat"}})
	if err != nil {
		t.Fatal(err)
	}
	first, err := i.client.Attach(t.Context(), made.ID, client.AttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w := &window{t: t, changed: make(chan struct{})}
	second, err := i.client.Attach(t.Context(), made.ID, client.AttachOptions{Stdout: w, Takeover: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.Wait(); err == nil || !strings.Contains(err.Error(), "took the session over") {
		t.Errorf("the first attachment ended with %v", err)
	}
	if _, err := second.Write([]byte("mine\n")); err != nil {
		t.Fatal(err)
	}
	w.until("mine\n")
	second.CloseStdin()
	if exit, err := second.Wait(); err != nil || *exit.ExitCode != 0 {
		t.Errorf("exit %+v, %v", exit, err)
	}
}

func testExecOnTerminal(t *testing.T, i *installation) {
	res := i.exec("sessions", apiv1.Exec{Argv: []string{"sh", "-c", "tty > /dev/null && stty size; exit 5"}, PTY: &apiv1.PTY{Cols: 90, Rows: 20}})
	if res.Stdout != "20 90\r\n" || *res.ExitCode != 5 || res.PTY == nil || res.PTYBytes != 7 {
		t.Errorf("%+v", res)
	}
}

// testDeadline ends what ignores every signal that can be ignored, in the foreground of a terminal too.
func testDeadline(t *testing.T, i *installation) {
	stubborn := "trap '' TERM HUP INT QUIT; echo deaf; while :; do sleep 1; done"
	for name, in := range map[string]apiv1.Exec{
		"pipes":    {Argv: []string{"sh", "-c", stubborn}},
		"terminal": {Argv: []string{"sh", "-ic", `sh -c "` + stubborn + `"; echo`}, PTY: &apiv1.PTY{Cols: 80, Rows: 24}},
	} {
		in.TimeoutSeconds = 2
		res := i.exec("sessions", in)
		if res.Error == nil || res.Error.Code != "deadline_exceeded" || !strings.Contains(res.Stdout, "deaf") {
			t.Errorf("%s: %+v", name, res)
		}
	}
	if all := i.sh("sessions", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '"); strings.Contains(all, "trap") {
		t.Errorf("processes are left: %q", all)
	}
}

func testDeleteBeforeStart(t *testing.T, i *installation) {
	made, err := i.client.CreateCommand(t.Context(), "sessions", apiv1.CreateCommand{Argv: []string{"touch", "started"}})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := i.client.Kill(t.Context(), made.ID); err != nil || got.State != "failed" || got.Error.Code != "canceled" {
		t.Errorf("delete: %+v, %v", got, err)
	}
	a, err := i.client.Attach(t.Context(), made.ID, client.AttachOptions{Token: &made.Attach})
	if err != nil {
		t.Fatal(err)
	}
	if exit, err := a.Wait(); err != nil || exit.State != "failed" {
		t.Errorf("an attach afterwards: %+v, %v", exit, err)
	}
	if out := i.sh("sessions", "ls started 2>/dev/null || echo none"); out != "none\n" {
		t.Error("it has been started")
	}
}

// testTerminalOverRestarts kills the gateway and control under a terminal.
func testTerminalOverRestarts(t *testing.T, i *installation) {
	made, err := i.client.CreateCommand(t.Context(), "sessions", apiv1.CreateCommand{PTY: &apiv1.PTY{Cols: 80, Rows: 24},
		Argv: []string{"sh", "-c", "stty -echo; echo ready; while read line; do echo \"<$line $(stty size)>\"; done; exit 4"}})
	if err != nil {
		t.Fatal(err)
	}
	w := &window{t: t, changed: make(chan struct{})}
	a, err := i.client.Attach(t.Context(), made.ID, client.AttachOptions{Stdout: w})
	if err != nil {
		t.Fatal(err)
	}
	w.until("ready")
	a.Resize(apiv1.PTY{Cols: 111, Rows: 33})
	for n, part := range []string{"", "gateway", "control"} {
		if part != "" {
			i.killPart(part)
		}
		if _, err := fmt.Fprintf(a, "line %d\n", n); err != nil {
			t.Fatal(err)
		}
		w.until(fmt.Sprintf("<line %d 33 111>", n))
	}
	a.CloseStdin()
	if exit, err := a.Wait(); err != nil || *exit.ExitCode != 4 {
		t.Errorf("exit %+v, %v", exit, err)
	}
}
