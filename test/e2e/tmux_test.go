//go:build realvm

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// desk is a real terminal, tmux's, with a shell in it, as a person has it. Each has a tmux server of its own.
type desk struct {
	t      *testing.T
	socket string
	dir    string // the shell's
	number int    // of the outer shell's next command
}

const (
	deskCols = 100
	deskRows = 30
	// deskPatience bounds what is waited for on the screen; machines are emulated and the host is shared.
	deskPatience = time.Minute
	// hostPrompt is the outer shell's, with the number of the next command and the exit code of the last.
	hostPrompt = "host%d(%d)>"
)

// openDesk starts a terminal whose shell has the installation's space in its PATH.
func openDesk(t *testing.T, i *installation, env ...string) *desk {
	t.Helper()
	dir, err := os.MkdirTemp("", "space-tmux-") // a path of t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	d := &desk{t: t, socket: filepath.Join(dir, "s"), dir: dir, number: 1}
	config := filepath.Join(dir, "tmux.conf")
	if err := os.WriteFile(config, []byte("set -g default-terminal screen-256color\nset -g status off\nset -g remain-on-exit on\nset -s escape-time 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "tmux", "-u", "-S", d.socket, "-f", config, "new-session", "-d", "-s", "desk",
		"-x", fmt.Sprint(deskCols), "-y", fmt.Sprint(deskRows), "bash", "--norc", "--noprofile", "-i")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+i.bin+":"+os.Getenv("PATH"), "SPACE_URL="+i.url, "SPACE_DATA_DIR="+i.dir, "LC_ALL=C.UTF-8",
		"HISTFILE=/dev/null", "PS1=host\\#($?)> ", "TMUX=", "TMUX_PANE=")
	cmd.Env = append(cmd.Env, env...)
	t.Cleanup(func() { _ = exec.Command("tmux", "-S", d.socket, "kill-server").Run() }) // there is none when it did not start
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("tmux: %v\n%s", err, out)
	}
	d.prompt(0)
	return d
}

// tmux gives the desk's tmux server a command.
func (d *desk) tmux(args ...string) string {
	d.t.Helper()
	out, err := exec.CommandContext(d.t.Context(), "tmux", append([]string{"-u", "-S", d.socket}, args...)...).CombinedOutput()
	if err != nil {
		d.t.Fatalf("tmux %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// screen is what is to be seen, without what has scrolled away and without empty lines at the end.
func (d *desk) screen() string {
	d.t.Helper()
	return strings.TrimRight(d.tmux("capture-pane", "-p"), "\n")
}

// colours is the screen with its colours as escape sequences.
func (d *desk) colours() string {
	d.t.Helper()
	return d.tmux("capture-pane", "-p", "-e")
}

// until waits until the screen is as it should be.
func (d *desk) until(what string, ok func(screen string) bool) string {
	d.t.Helper()
	deadline := time.After(deskPatience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		screen := d.screen()
		if ok(screen) {
			return screen
		}
		select {
		case <-tick.C:
		case <-deadline:
			d.t.Fatalf("not on the screen: %s\n%s", what, screen)
		}
	}
}

// shows waits for a text. With a line's end before and after it, it is not part of what was typed.
func (d *desk) shows(text string) string {
	d.t.Helper()
	return d.until(text, func(screen string) bool { return strings.Contains(screen+"\n", text) })
}

// last waits until the line with the cursor, the last one, is this.
func (d *desk) last(line string) string {
	d.t.Helper()
	return d.until("as the last line "+line, func(screen string) bool { return lastLine(screen) == line })
}

func lastLine(screen string) string {
	return strings.TrimRight(screen[strings.LastIndexByte(screen, '\n')+1:], " ")
}

// prompt waits until the outer shell is there again, and what ran in it has ended with this code.
func (d *desk) prompt(code int) string {
	d.t.Helper()
	want := fmt.Sprintf(hostPrompt, d.number, code)
	return d.until("at the end "+want, func(screen string) bool { return strings.HasSuffix(lastLine(screen), want) })
}

// key presses keys by their names: C-c, Enter, Up.
func (d *desk) key(names ...string) {
	d.t.Helper()
	d.tmux(append([]string{"send-keys"}, names...)...)
}

// text types characters.
func (d *desk) text(s string) {
	d.t.Helper()
	d.tmux("send-keys", "-l", s)
}

// line types a line.
func (d *desk) line(s string) {
	d.t.Helper()
	d.text(s)
	d.key("Enter")
}

// run types a line into the outer shell, on an empty screen, and waits until it has ended with this code.
func (d *desk) run(line string, code int) string {
	d.t.Helper()
	d.begin(line)
	return d.prompt(code)
}

// begin types a line into the outer shell on an empty screen.
func (d *desk) begin(line string) {
	d.t.Helper()
	d.clear()
	d.number++
	d.line(line)
}

// clear empties the screen with the outer shell's own means, and what has scrolled away too.
func (d *desk) clear() {
	d.t.Helper()
	d.key("C-l")
	d.until("an empty screen", func(screen string) bool { return strings.HasPrefix(screen, "host") && !strings.Contains(screen, "\n") })
	d.tmux("clear-history")
}

// resize changes the size of the window.
func (d *desk) resize(cols, rows int) {
	d.t.Helper()
	d.tmux("resize-window", "-x", fmt.Sprint(cols), "-y", fmt.Sprint(rows))
}

// tty is the terminal's device.
func (d *desk) tty() string {
	d.t.Helper()
	return strings.TrimSpace(d.tmux("display-message", "-p", "#{pane_tty}"))
}

// modes is what stty says about the terminal. A shell that edits its line has modes of its own, so it is asked at a
// moment at which no shell reads.
func (d *desk) modes() string {
	d.t.Helper()
	out, err := exec.CommandContext(d.t.Context(), "stty", "-a", "-F", d.tty()).CombinedOutput()
	if err != nil {
		d.t.Fatalf("stty: %v\n%s", err, out)
	}
	return string(out)
}

// foreground is the process of a program that runs in the terminal's foreground.
func (d *desk) foreground(program string) int {
	d.t.Helper()
	tty := strings.TrimPrefix(d.tty(), "/dev/")
	out, err := exec.CommandContext(d.t.Context(), "ps", "-t", tty, "-o", "pid=,stat=,comm=").CombinedOutput()
	if err != nil {
		d.t.Fatalf("ps: %v\n%s", err, out)
	}
	for l := range strings.Lines(string(out)) {
		var pid int
		var stat, comm string
		if _, err := fmt.Sscan(l, &pid, &stat, &comm); err == nil && comm == program && strings.Contains(stat, "+") {
			return pid
		}
	}
	d.t.Fatalf("no %s in the foreground:\n%s", program, out)
	return 0
}
