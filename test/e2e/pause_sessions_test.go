//go:build realvm

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
	"github.com/space-sandbox/space/internal/part"
)

// countingScript prints ten numbered lines a second, and ends with an exit code of its own.
const (
	countedLines   = 120
	countingScript = `n=0; while [ $n -lt 120 ]; do n=$((n+1)); echo $n; sleep 0.1; done; exit 7`
)

func countedOutput() string {
	var b strings.Builder
	for n := range countedLines {
		fmt.Fprintln(&b, n+1)
	}
	return b.String()
}

// TestSessionsOverPause pauses a microVM under its sessions, once as it is and once while parts of SPACE are killed: no
// byte of output is lost or comes twice, exit codes arrive, deadlines count running time, the clock is right.
func TestSessionsOverPause(t *testing.T) {
	t.Parallel()
	i := install(t)
	i.start()
	i.create(apiv1.CreateSandbox{Name: "still"})
	counting := i.command(apiv1.CreateCommand{Argv: []string{"sh", "-c", countingScript}})
	shown := i.follow(counting)
	r := &pausedReader{i: i, cmd: counting}
	r.read(func() bool { return bytes.Count(r.out.Bytes(), []byte("\n")) >= 5 })
	const timeout = 15 * time.Second
	bounded := i.command(apiv1.CreateCommand{Argv: []string{"sleep", "1000"}, TimeoutSeconds: timeout.Seconds(), Start: true})
	began := time.Now()
	i.pause("still")
	r.expectClose(apiv1.CloseStopped, "paused")
	i.refusedWhilePaused(counting)
	<-time.After(pauseTime) // the one thing under test here is time
	i.resume("still")
	at := i.readClock("still")
	if early, late := at.before.Sub(at.guest), at.guest.Sub(at.after); early > 2*time.Second || late > 2*time.Second {
		t.Errorf("the guest's clock says %v between %v and %v", at.guest, at.before, at.after)
	}
	i.clockIsPutRight("still")
	r.reattach()
	r.read(func() bool { return bytes.Count(r.out.Bytes(), []byte("\n")) >= 30 })

	i.pause("still")
	r.expectClose(apiv1.CloseStopped, "paused")
	for _, name := range []string{part.Gateway, part.Control, part.Node} {
		i.killPart(name)
		i.ready()
		if box, err := i.client.Sandbox(t.Context(), "still"); err != nil || box.State != "paused" {
			t.Fatalf("after killing %s: %+v, %v", name, box, err)
		}
		if cmd, err := i.client.Command(t.Context(), counting.ID); err != nil || cmd.State != "running" {
			t.Errorf("after killing %s the command is %+v, %v", name, cmd, err)
		}
	}
	i.resume("still")
	r.reattach()
	r.expectClose(apiv1.CloseExit, "exited with code 7")
	if r.out.String() != countedOutput() {
		t.Errorf("read %q", &r.out)
	}
	got, err := i.client.WaitCommand(t.Context(), bounded.ID)
	if err != nil || got.Error == nil || got.Error.Code != "deadline_exceeded" {
		t.Fatalf("the bounded command: %+v, %v", got, err)
	}
	if took := time.Since(began); took < timeout+pauseTime {
		t.Errorf("the deadline of %v came after %v, of which %v were a pause", timeout, took, pauseTime)
	}
	shown.check(t)
	i.delete("still")
}

// clockIsPutRight sets another date inside. A new watch of the agent compares the clocks at once, else it is done each
// minute.
func (i *installation) clockIsPutRight(ref string) {
	i.t.Helper()
	if res := i.exec(ref, apiv1.Exec{Argv: []string{"date", "-s", "2001-02-03 04:05:06"}, User: "root"}); res.ExitCode == nil || *res.ExitCode != 0 {
		i.t.Fatalf("date: %+v", res)
	}
	i.killPart(part.Gateway)
	i.ready()
	i.eventually(time.Minute, "the clock is right", func() bool { return time.Since(i.readClock(ref).guest).Abs() < time.Minute })
}

func (i *installation) command(in apiv1.CreateCommand) *apiv1.CreatedCommand {
	i.t.Helper()
	made, err := i.client.CreateCommand(i.t.Context(), "still", in)
	if err != nil {
		i.t.Fatal(err)
	}
	return made
}

// ready waits until all parts are connected again.
func (i *installation) ready() {
	i.t.Helper()
	i.eventually(readyTimeout, "all parts are ready", func() bool { return i.client.Ready(i.t.Context()) == nil })
}

// refusedWhilePaused tries what needs the guest, and what does not.
func (i *installation) refusedWhilePaused(cmd *apiv1.CreatedCommand) {
	i.t.Helper()
	ctx := i.t.Context()
	for what, call := range map[string]func() error{
		"exec": func() error {
			_, err := i.client.Exec(ctx, "still", apiv1.Exec{Argv: []string{"true"}})
			return err
		},
		"signal": func() error {
			_, err := i.client.Signal(ctx, cmd.ID, "SIGTERM")
			return err
		},
		"file": func() error {
			_, err := i.client.ReadFile(ctx, "still", "/etc/passwd", client.FileOptions{})
			return err
		},
		"attach": func() error {
			_, err := i.client.Attach(ctx, cmd.ID, client.AttachOptions{Token: &cmd.Attach})
			return err
		},
	} {
		var e *client.Error
		if err := call(); !errors.As(err, &e) || e.Code != "invalid_state" || !strings.Contains(e.Remedy, "resume") {
			i.t.Errorf("%s of a paused sandbox: %v", what, err)
		}
	}
	if got, err := i.client.Command(ctx, cmd.ID); err != nil || got.State != "running" {
		i.t.Errorf("the command is %+v, %v", got, err)
	}
}

// pausedReader reads a session's standard output over several WebSockets.
type pausedReader struct {
	i    *installation
	cmd  *apiv1.CreatedCommand
	conn *websocket.Conn
	out  bytes.Buffer
}

// reattach connects from where the output has been read.
func (r *pausedReader) reattach() {
	r.i.t.Helper()
	conn, _, err := websocket.Dial(r.i.t.Context(), fmt.Sprintf("%s?stdout_offset=%d&token=%s", r.cmd.Attach.URL, r.out.Len(), r.cmd.Attach.Token), nil)
	if err != nil {
		r.i.t.Fatalf("attach: %v", err)
	}
	conn.SetReadLimit(1 << 20)
	r.conn = conn
	r.i.t.Cleanup(func() { conn.CloseNow() })
}

// read reads until enough says so, or to the close.
func (r *pausedReader) read(enough func() bool) error {
	r.i.t.Helper()
	if r.conn == nil {
		r.reattach()
	}
	ctx, cancel := context.WithTimeout(r.i.t.Context(), time.Minute)
	defer cancel()
	for !enough() {
		_, frame, err := r.conn.Read(ctx)
		if ctx.Err() != nil {
			r.i.t.Fatalf("nothing comes after %q", &r.out)
		}
		if err != nil {
			return err
		}
		if frame[0] == apiv1.ChannelStdout {
			r.out.Write(frame[1:])
		}
	}
	return nil
}

func (r *pausedReader) expectClose(code websocket.StatusCode, reason string) {
	r.i.t.Helper()
	err := r.read(func() bool { return false })
	var closed websocket.CloseError
	if !errors.As(err, &closed) || closed.Code != code || closed.Reason != reason {
		r.i.t.Errorf("the attachment ended with %v, want %d %s", err, code, reason)
	}
}

// following is a `space attach` that runs meanwhile.
type following struct {
	cmd         *exec.Cmd
	stdout, err bytes.Buffer
}

// follow attaches to a command with the CLI.
func (i *installation) follow(made *apiv1.CreatedCommand) *following {
	i.t.Helper()
	f := &following{cmd: exec.CommandContext(i.t.Context(), filepath.Join(i.bin, "space"), "--data-dir", i.dir, "attach", made.ID)}
	f.cmd.Env = append(os.Environ(), "SPACE_URL="+i.url)
	f.cmd.Stdout, f.cmd.Stderr = &f.stdout, &f.err
	if err := f.cmd.Start(); err != nil {
		i.t.Fatal(err)
	}
	return f
}

// check waits for its end: it has shown everything once and said that it waited.
func (f *following) check(t *testing.T) {
	t.Helper()
	_ = f.cmd.Wait() // the exit code tells
	if code := f.cmd.ProcessState.ExitCode(); code != 7 {
		t.Errorf("space attach ended with %d", code)
	}
	if f.stdout.String() != countedOutput() {
		t.Errorf("space attach showed %q", &f.stdout)
	}
	if want := "space: paused; waiting for resume (Ctrl-C leaves)\n"; f.err.String() != want+want {
		t.Errorf("space attach said %q", &f.err)
	}
}
