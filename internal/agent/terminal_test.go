package agent

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"connectrpc.com/connect"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

// onTerminal is a specification that runs a script on a terminal.
func onTerminal(script string) *agentv1.ProcessSpec {
	spec := shell(script)
	spec.Pty = &agentv1.TerminalSize{Cols: 80, Rows: 24}
	return spec
}

// screen is an attached reader of a terminal.
type screen struct {
	f      *fixture
	id     string
	stream *connect.ServerStreamForClient[agentv1.AttachResponse]
	shown  []byte
	exit   *agentv1.Process
}

// watch starts a process, if need be, and reads its terminal.
func (f *fixture) watch(id string) *screen {
	f.t.Helper()
	stream, err := f.agent.Attach(f.t.Context(), connect.NewRequest(&agentv1.AttachRequest{ProcessId: id, Start: true, Follow: true,
		Positions: append(bothStreams(), &agentv1.StreamPosition{Stream: agentv1.OutputStream_OUTPUT_STREAM_PTY})}))
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { stream.Close() })
	return &screen{f: f, id: id, stream: stream}
}

// until reads until the terminal has shown text; "" is to the end.
func (s *screen) until(text string) string {
	s.f.t.Helper()
	for text == "" || !bytes.Contains(s.shown, []byte(text)) {
		if !s.stream.Receive() {
			if text != "" || s.stream.Err() != nil {
				s.f.t.Fatalf("the stream ended (%v) before %q; shown: %q", s.stream.Err(), text, s.shown)
			}
			break
		}
		m := s.stream.Msg()
		if d := m.GetData(); d != nil && d.Stream != agentv1.OutputStream_OUTPUT_STREAM_PTY {
			s.f.t.Fatalf("data on stream %v", d.Stream)
		}
		s.shown = append(s.shown, m.GetData().GetData()...)
		if e := m.GetExit(); e != nil {
			s.exit = e
		}
	}
	return string(s.shown)
}

// key types on the terminal.
func (s *screen) key(text string) {
	s.f.t.Helper()
	if _, err := s.f.agent.WriteStdin(s.f.t.Context(), connect.NewRequest(&agentv1.WriteStdinRequest{ProcessId: s.id, Data: []byte(text)})); err != nil {
		s.f.t.Fatal(err)
	}
}

func (f *fixture) resize(id string, cols, rows uint32) error {
	_, err := f.agent.ResizeProcess(f.t.Context(), connect.NewRequest(&agentv1.ResizeProcessRequest{ProcessId: id,
		Size: &agentv1.TerminalSize{Cols: cols, Rows: rows}}))
	return err
}

func TestTerminal(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	s := f.watch(f.create(onTerminal(`test -t 0 && test -t 1 && test -t 2 && echo three; echo $TERM; stty size; echo ctty > /dev/tty; ps -o sid= -p $$ | tr -d ' '; exit 7`)))
	got := s.until("")
	want := fmt.Sprintf("three\r\nxterm-256color\r\n24 80\r\nctty\r\n%d\r\n", s.exit.Pid)
	if got != want || s.exit.ExitCode != 7 {
		t.Errorf("shown %q, exit %v; want %q", got, s.exit, want)
	}
	if s.exit.PtyBytes != uint64(len(got)) || s.exit.StdoutBytes != 0 || s.exit.StderrBytes != 0 {
		t.Errorf("sizes %v", s.exit)
	}
}

func TestTerminalOfAnotherUser(t *testing.T) {
	t.Parallel()
	if !privileged() {
		t.Log("not root: the user is who runs the test")
	}
	f := newFixture(t, nil)
	spec := onTerminal(`stat -c %u "$(tty)"; echo x > "$(tty)"`)
	if privileged() {
		spec.User = nobody
	}
	s := f.watch(f.create(spec))
	if got := s.until(""); privileged() && got != nobody+"\r\nx\r\n" || !strings.HasSuffix(got, "x\r\n") {
		t.Errorf("shown %q", got)
	}
}

func TestResize(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	id := f.create(onTerminal(`trap 'stty size; exit' WINCH; stty size; echo ready; while :; do sleep 0.05; done`))
	wantCode(t, f.resize(id, 100, 40), "") // not started yet: it starts with this size
	s := f.watch(id)
	s.until("40 100\r\nready\r\n")
	wantCode(t, f.resize(id, 132, 50), "")
	for _, bad := range [][2]uint32{{0, 1}, {1, 0}, {1 << 16, 1}, {1, 1 << 16}} {
		wantCode(t, f.resize(id, bad[0], bad[1]), sandbox.CodeInvalidArgument)
	}
	s.until("50 132\r\n")
	s.until("")
	wantCode(t, f.resize(id, 80, 24), sandbox.CodeNotRunning)
	wantCode(t, f.resize(f.start(shell("cat")), 80, 24), sandbox.CodeInvalidState)
}

// TestEndOfInputOnATerminal: eof types the end-of-file character, which is nobody's data; the terminal stays open.
func TestEndOfInputOnATerminal(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	s := f.watch(f.create(onTerminal(`stty -echo; cat; echo again; cat; exit 2`)))
	for range 2 {
		if _, err := f.agent.WriteStdin(t.Context(), connect.NewRequest(&agentv1.WriteStdinRequest{ProcessId: s.id, Data: []byte("a line\n"), Eof: true})); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.until(""); !strings.HasSuffix(got, "a line\r\nagain\r\na line\r\n") || s.exit.StdinBytes != 14 || s.exit.ExitCode != 2 {
		t.Errorf("shown %q, exit %v", got, s.exit)
	}
}

// TestEndOfInputInTheMiddleOfALine: there the first end-of-file character only hands over the line's beginning.
func TestEndOfInputInTheMiddleOfALine(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	s := f.watch(f.create(onTerminal(`stty -echo; read a; echo "<$a>"; exit 2`)))
	if _, err := f.agent.WriteStdin(t.Context(), connect.NewRequest(&agentv1.WriteStdinRequest{ProcessId: s.id, Data: []byte("half"), Eof: true})); err != nil {
		t.Fatal(err)
	}
	if got := s.until(""); !strings.HasSuffix(got, "<half>\r\n") || s.exit.StdinBytes != 4 || s.exit.ExitCode != 2 {
		t.Errorf("shown %q, exit %v", got, s.exit)
	}
}

func TestInterruptFromTheKeyboard(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	s := f.watch(f.create(onTerminal(`trap 'echo interrupted; exit 3' INT; echo ready; while :; do sleep 1000 & wait; done`)))
	s.until("ready")
	s.key("\x03")
	s.until("interrupted")
	if s.until(""); s.exit.ExitCode != 3 {
		t.Errorf("exit %v", s.exit)
	}
}

// TestTerminalCarriesAllBytes: in raw mode every byte value passes both ways.
func TestTerminalCarriesAllBytes(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	s := f.watch(f.create(onTerminal(`stty raw -echo; echo ready; exec head -c 256`)))
	s.until("ready\n")
	s.key(string(all))
	if got := s.until(""); !strings.HasSuffix(got, string(all)) || s.exit.StdinBytes != 256 {
		t.Errorf("%q came back, %d counted", got, s.exit.StdinBytes)
	}
}

// TestTerminalKeepsTheLastWords: a program that writes much and ends at once loses nothing.
func TestTerminalKeepsTheLastWords(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	s := f.watch(f.create(onTerminal(`stty raw; head -c 300000 /dev/zero | tr '\0' a; echo END`)))
	if got := s.until(""); len(got) != 300004 || !strings.HasSuffix(got, "END\n") {
		t.Errorf("%d bytes, the last %q", len(got), got[max(0, len(got)-10):])
	}
}

// TestHangUp: with its first process a terminal ends for those that are left on it.
func TestHangUp(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	s := f.watch(f.create(onTerminal(`sleep 1000 & echo $!`)))
	var child int
	if _, err := fmt.Sscan(s.until(""), &child); err != nil {
		t.Fatal(err)
	}
	if s.exit.GetState() != stateExited {
		t.Errorf("exit %v", s.exit)
	}
	waitGone(t, child)
}

func TestTimeoutKillsTheForeground(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	spec := &agentv1.ProcessSpec{Argv: []string{"/bin/bash", "--norc", "-ic", `trap '' TERM HUP INT; bash -c "trap '' TERM HUP INT; echo \$\$; while :; do sleep 1; done"; echo`},
		Pty: &agentv1.TerminalSize{Cols: 80, Rows: 24}, TimeoutSeconds: 2}
	s := f.watch(f.create(spec))
	shown := s.until("")
	var child int
	if _, err := fmt.Sscan(shown, &child); err != nil {
		t.Fatalf("shown %q: %v", shown, err)
	}
	if s.exit.ErrorCode != "deadline_exceeded" {
		t.Errorf("exit %v", s.exit)
	}
	waitGone(t, child)
}
