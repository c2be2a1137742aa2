package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
	"github.com/space-sandbox/space/internal/spacetest"
)

func TestEscapes(t *testing.T) {
	t.Parallel()
	for typed, want := range map[string]string{
		"ls\r":         "ls\r",
		"~.":           "|left",
		"ls\r~.":       "ls\r|left",
		"ls~.":         "ls~.",
		"\r~~x~.":      "\r~x~.",
		"\r~x":         "\r~x",
		"\r~\r~.":      "\r~\r|left",
		"\xff\x00\x03": "\xff\x00\x03",
	} {
		for _, split := range []int{1, len(typed)} { // a key at a time, and all at once
			e, got := newEscapes(), ""
			for rest := []byte(typed); len(rest) > 0 && !strings.HasSuffix(got, "|left"); rest = rest[split:] {
				out, leave := e.filter(rest[:split])
				if got += string(out); leave {
					got += "|left"
				}
			}
			if got != want {
				t.Errorf("%q in pieces of %d: %q, want %q", typed, split, got, want)
			}
		}
	}
}

// window is a terminal in which space runs.
type window struct {
	t    *testing.T
	cmd  *exec.Cmd
	file *os.File
	done chan struct{} // the terminal is at its end

	mu      sync.Mutex
	changed chan struct{}
	shown   bytes.Buffer
}

// openWindow runs space in a terminal of 100 columns and 30 rows.
func openWindow(t *testing.T, i *spacetest.Installation, url string, args ...string) *window {
	t.Helper()
	w := &window{t: t, cmd: exec.CommandContext(t.Context(), "space", args...), done: make(chan struct{}), changed: make(chan struct{})}
	w.cmd.Env = append(os.Environ(), "SPACE_URL="+url, "SPACE_API_KEY="+i.Key, "TERM=vt220")
	var err error
	if w.file, err = pty.StartWithSize(w.cmd, &pty.Winsize{Cols: 100, Rows: 30}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.file.Close() })
	go func() {
		defer close(w.done)
		_, _ = io.Copy(w, w.file) // ends with EIO when space has ended
	}()
	return w
}

// Write takes what is shown.
func (w *window) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.changed)
	w.changed = make(chan struct{})
	return w.shown.Write(p)
}

// until waits until text is shown after everything that was waited for before.
func (w *window) until(text string) {
	w.t.Helper()
	deadline := time.After(patience)
	for {
		w.mu.Lock()
		at, changed := bytes.Index(w.shown.Bytes(), []byte(text)), w.changed
		if at >= 0 {
			w.shown.Next(at + len(text))
			w.mu.Unlock()
			return
		}
		rest := w.shown.String()
		w.mu.Unlock()
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

// settings are the terminal's: everything stty can change.
func (w *window) settings() unix.Termios {
	w.t.Helper()
	s, err := unix.IoctlGetTermios(int(w.file.Fd()), unix.TCGETS)
	if err != nil {
		w.t.Fatal(err)
	}
	return *s
}

// awaitRaw waits until space has changed the terminal's settings.
func (w *window) awaitRaw(before unix.Termios) {
	w.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for w.settings() == before {
		select {
		case <-tick.C:
		case <-deadline:
			w.t.Fatal("the terminal is not raw")
		}
	}
}

// exit waits for the end of space and checks its code.
func (w *window) exit(code int) {
	w.t.Helper()
	_ = w.cmd.Wait() // the code tells
	if got := w.cmd.ProcessState.ExitCode(); got != code {
		<-w.done
		w.t.Errorf("exit code %d, want %d; shown: %q", got, code, w.shown.String())
	}
}

// installed is an installation with one sandbox.
func installed(t *testing.T) (*spacetest.Installation, string) {
	t.Helper()
	i := spacetest.Start(t)
	res, err := i.Client.CreateSandbox(t.Context(), apiv1.CreateSandbox{Template: "tiny", Name: "box"}, client.Wait(time.Minute))
	if err != nil || res.Sandbox.State != "running" {
		t.Fatalf("create: %+v, %v", res, err)
	}
	return i, i.Client.BaseURL
}

// shellArgs is an interactive shell with job control and a prompt that is easy to find.
func shellArgs() []string {
	return []string{"shell", "box", "-e", "PS1=[$? ready] ", "-e", "HISTFILE=/dev/null", "--", "bash", "--norc", "--noprofile", "-i"}
}

func TestShell(t *testing.T) {
	t.Parallel()
	i, url := installed(t)
	w := openWindow(t, i, url, shellArgs()...)
	w.until("[0 ready] ")
	w.key("stty size; echo $TERM; tty | cut -c1-8\r")
	w.until("30 100\r\nvt220\r\n/dev/pts\r\n")
	// Ctrl-C ends what runs there, not space.
	w.key("sh -c 'echo be''gun; exec sleep 1000'\r")
	w.until("begun\r\n")
	w.key("\x03")
	w.until("[130 ready] ")
	// Ctrl-Z stops it, and the shell has it as a job.
	w.key("sh -c 'echo u''p; exec cat'\r")
	w.until("up\r\n") // before that the terminal may still be the line editor's, which takes Enter for something else
	w.key("there\r")
	w.until("there\r\nthere\r\n")
	w.key("\x1a")
	w.until("Stopped")
	w.until("ready] ")
	w.key("fg\r")
	w.until("exec cat'\r\n")
	w.key("\x04")
	w.until("[0 ready] ")
	// The size follows the window.
	if err := pty.Setsize(w.file, &pty.Winsize{Cols: 132, Rows: 43}); err != nil {
		t.Fatal(err)
	}
	w.key("until [ \"$(stty size)\" = '43 132' ]; do sleep 0.05; done; echo re''sized\r")
	w.until("resized\r\n")
	w.key("printf '\\342\\202\\254\\n'\r")
	w.until("€\r\n")
	w.key("exit 7\r")
	w.exit(7)
}

// TestShellLeavesTheTerminalAsItWas ends a shell in every way there is.
func TestShellLeavesTheTerminalAsItWas(t *testing.T) {
	t.Parallel()
	i, url := installed(t)
	for name, end := range map[string]struct {
		do   func(w *window)
		code int
	}{
		"exit":    {func(w *window) { w.key("exit 3\r") }, 3},
		"leave":   {func(w *window) { w.key("\r~.") }, 0},
		"killed":  {func(w *window) { w.key("kill -9 $$\r") }, 137},
		"term":    {func(w *window) { _ = w.cmd.Process.Signal(syscall.SIGTERM) }, 143},
		"hangup":  {func(w *window) { _ = w.cmd.Process.Signal(syscall.SIGHUP) }, 129},
		"missing": {nil, 127},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// A shell of this terminal looks at it before and after, so that its modes outlive space.
			args := shellArgs()
			if end.do == nil {
				args = []string{"shell", "box", "--", "no-such-program"}
			}
			w := &window{t: t, done: make(chan struct{}), changed: make(chan struct{})}
			w.cmd = exec.CommandContext(t.Context(), "space", args...)
			w.cmd.Env = append(os.Environ(), "SPACE_URL="+url, "SPACE_API_KEY="+i.Key)
			master, slave, err := pty.Open()
			if err != nil {
				t.Fatal(err)
			}
			defer slave.Close()
			w.file = master
			before := w.settings()
			w.cmd.Stdin, w.cmd.Stdout, w.cmd.Stderr = slave, slave, slave
			w.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
			if err := w.cmd.Start(); err != nil {
				t.Fatal(err)
			}
			go func() {
				defer close(w.done)
				_, _ = io.Copy(w, master)
			}()
			if end.do != nil {
				w.until("ready] ")
				w.awaitRaw(before)
				end.do(w)
			}
			_ = w.cmd.Wait() // the code tells
			if got := w.cmd.ProcessState.ExitCode(); got != end.code {
				t.Errorf("exit code %d, want %d", got, end.code)
			}
			if after := w.settings(); after != before {
				t.Errorf("the terminal's settings are %+v, were %+v", after, before)
			}
			slave.Close()
			master.Close()
			<-w.done
		})
	}
}

// runningSession is the one session that runs: the record may learn of it later than who is attached.
func (w *window) runningSession(i *spacetest.Installation) string {
	w.t.Helper()
	for {
		list, err := i.Client.ListCommands(w.t.Context(), "box", client.CommandQuery{States: []string{"running"}})
		if err != nil || len(list.Items) > 1 {
			w.t.Fatalf("running sessions: %+v, %v", list, err)
		}
		if len(list.Items) == 1 {
			return list.Items[0].ID
		}
	}
}

// TestLeaveAndComeBack leaves a shell, comes back to it from another window, and takes it over from a third.
func TestLeaveAndComeBack(t *testing.T) {
	t.Parallel()
	i, url := installed(t)
	w := openWindow(t, i, url, shellArgs()...)
	w.until("[0 ready] ")
	w.key("word=magic\r")
	w.until("ready] ")
	w.key("\r~.")
	w.until("space attach cmd_")
	w.exit(0)
	id := w.runningSession(i)
	second := openWindow(t, i, url, "attach", id)
	second.until("word=magic") // shown again
	second.key("echo the $word word\r")
	second.until("the magic word")
	third := openWindow(t, i, url, "attach", "--takeover", id)
	second.until("another client took the session over")
	second.exit(1)
	third.key("echo still $word; exit 4\r")
	third.until("still magic")
	third.exit(4)
	var out bytes.Buffer
	logs := exec.CommandContext(t.Context(), "space", "logs", id)
	logs.Env, logs.Stdout = append(os.Environ(), "SPACE_URL="+url, "SPACE_API_KEY="+i.Key), &out
	if err := logs.Run(); err != nil || !strings.Contains(out.String(), "still magic") {
		t.Errorf("logs: %v, %q", err, out.String())
	}
}

// TestExecOnATerminal: exec -t has a terminal there also when there is none here.
func TestExecOnATerminal(t *testing.T) {
	t.Parallel()
	i, url := installed(t)
	cmd := exec.CommandContext(t.Context(), "space", "exec", "-t", "box", "--", "sh", "-c", "tty >/dev/null && stty size && cat && exit 6")
	cmd.Env = append(os.Environ(), "SPACE_URL="+url, "SPACE_API_KEY="+i.Key)
	cmd.Stdin = strings.NewReader("typed\n")
	out, err := cmd.Output()
	if cmd.ProcessState.ExitCode() != 6 || !strings.Contains(string(out), "24 80\r\n") || strings.Count(string(out), "typed\r\n") != 2 {
		t.Errorf("exit %v, output %q", err, out)
	}
}
