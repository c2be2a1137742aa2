package ingress

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

func TestAttachStartsAndFollows(t *testing.T) {
	t.Parallel()
	p := newPlane(t, Limits{})
	c := p.attach(t, "")
	if s := p.guest.state(); s.GetState() != agentv1.ProcessState_PROCESS_STATE_RUNNING {
		t.Errorf("the process is %v after the attach", s.GetState())
	}
	want := startedFrame{Type: "started", PID: 42, Epoch: 3}
	if diff := cmp.Diff(want, c.started); diff != "" {
		t.Error(diff)
	}
	if got := c.conn.Subprotocol(); got != "space.attach.v1" {
		t.Errorf("subprotocol %q", got)
	}
	p.guest.print(stdout, "one\n")
	c.stdout("one\n")
	p.guest.print(stderr, "two\x00\xff\n")
	c.until("stderr", func() bool { return c.out[apiv1.ChannelStderr] == "two\x00\xff\n" })
	p.guest.exit(7)
	closed := c.rest()
	if closed.Code != 4000 || !strings.Contains(closed.Reason, "exited with code 7") {
		t.Errorf("closed with %v", closed)
	}
	var exit map[string]any
	if err := json.Unmarshal([]byte(c.control[len(c.control)-1]), &exit); err != nil {
		t.Fatal(err)
	}
	wantExit := map[string]any{"type": "exit", "id": string(p.claims.CommandID), "sandbox_id": string(p.claims.SandboxID),
		"process_id": string(p.claims.ProcessID), "state": "exited", "pid": 42.0, "exit_code": 7.0, "signal": nil, "error": nil,
		"started_at": nil, "ended_at": nil, "stdout_bytes": 4.0, "stderr_bytes": 6.0, "pty_bytes": 0.0, "stdin_bytes": 0.0, "truncated_bytes": 0.0, "epoch": 3.0}
	if diff := cmp.Diff(wantExit, exit); diff != "" {
		t.Error(diff)
	}
}

func TestAttachToFailedProcess(t *testing.T) {
	t.Parallel()
	p := newPlane(t, Limits{})
	p.guest.edit(func() {
		p.guest.proc.State = agentv1.ProcessState_PROCESS_STATE_FAILED
		p.guest.proc.ErrorCode, p.guest.proc.ErrorMessage = "command_not_found", "no such program"
	})
	c := p.attach(t, "")
	if closed := c.rest(); closed.Code != 4000 || !strings.Contains(closed.Reason, "command_not_found") {
		t.Errorf("closed with %v", closed)
	}
	var exit exitFrame
	if err := json.Unmarshal([]byte(c.control[1]), &exit); err != nil {
		t.Fatal(err)
	}
	if exit.State != "failed" || exit.ExitCode != nil || exit.PID != nil || exit.Error == nil || exit.Error.Code != "command_not_found" {
		t.Errorf("exit frame %s", c.control[1])
	}
}

// TestAttachToExpiredProcess: the exit frame says what the record says.
func TestAttachToExpiredProcess(t *testing.T) {
	t.Parallel()
	p := newPlane(t, Limits{})
	p.guest.edit(func() {
		p.guest.proc.State = agentv1.ProcessState_PROCESS_STATE_FAILED
		p.guest.proc.ErrorCode, p.guest.proc.ErrorMessage = "expired", "nobody has attached to it in time"
	})
	c := p.attach(t, "")
	if closed := c.rest(); closed.Code != 4000 || !strings.Contains(closed.Reason, "never started: expired") {
		t.Errorf("closed with %v", closed)
	}
	if !strings.Contains(c.control[1], `"state":"expired"`) {
		t.Errorf("exit frame %s", c.control[1])
	}
}

func TestReattachFromOffsetsGivesEachByteOnce(t *testing.T) {
	t.Parallel()
	p := newPlane(t, Limits{})
	c := p.attach(t, "")
	p.guest.print(stdout, "abcdef")
	p.guest.print(stderr, "xyz")
	c.stdout("abcdef")
	c.conn.CloseNow()
	p.guest.await(t, "the stream of a client that has gone ends", func() bool { return p.guest.streams == 0 })

	c = p.attach(t, "?stdout_offset=4&stderr_offset=end")
	if c.started.StdoutOffset != 4 || c.started.StderrOffset != 3 {
		t.Errorf("started %+v", c.started)
	}
	p.guest.print(stdout, "gh")
	p.guest.print(stderr, "!")
	p.guest.exit(0)
	c.rest()
	if c.out[apiv1.ChannelStdout] != "efgh" || c.out[apiv1.ChannelStderr] != "!" {
		t.Errorf("got %q", c.out)
	}
}

func TestTwoReaders(t *testing.T) {
	t.Parallel()
	p := newPlane(t, Limits{})
	a, b := p.attach(t, ""), p.attach(t, "")
	p.guest.print(stdout, "for both")
	a.stdout("for both")
	b.stdout("for both")
	p.guest.exit(0)
	if x, y := a.rest(), b.rest(); x.Code != 4000 || y.Code != 4000 {
		t.Errorf("closed with %v and %v", x, y)
	}
}

func TestStdinInOrderThenEOF(t *testing.T) {
	t.Parallel()
	p := newPlane(t, Limits{})
	c := p.attach(t, "")
	big := strings.Repeat("0123456789abcdef", 1<<16) // 1 MiB, the largest frame
	c.send(apiv1.ChannelStdin, "first ")
	c.send(apiv1.ChannelStdin, big)
	c.send(apiv1.ChannelStdin, " last")
	c.send(apiv1.ChannelControl, `{"type":"eof"}`)
	p.guest.await(t, "end of input", func() bool { return p.guest.proc.StdinClosed })
	if got := p.guest.stdin.String(); got != "first "+big+" last" {
		t.Errorf("%d bytes came, want %d", len(got), len(big)+11)
	}
	c.send(apiv1.ChannelStdin, "too late")
	c.until("an error frame", func() bool { return len(c.control) == 2 })
	if !strings.Contains(c.control[1], `"type":"error"`) || !strings.Contains(c.control[1], "stdin_closed") {
		t.Errorf("got %s", c.control[1])
	}
	p.guest.exit(0)
	if closed := c.rest(); closed.Code != 4000 {
		t.Errorf("closed with %v", closed)
	}
}

func TestSignalOvertakesInputThatWaits(t *testing.T) {
	t.Parallel()
	p := newPlane(t, Limits{})
	hold := make(chan struct{})
	p.guest.edit(func() { p.guest.hold = hold })
	c := p.attach(t, "")
	c.send(apiv1.ChannelStdin, strings.Repeat("x", 128<<10))
	c.send(apiv1.ChannelControl, `{"type":"signal","signal":"SIGINT"}`)
	p.guest.await(t, "signal", func() bool { return len(p.guest.signals) == 1 })
	c.send(apiv1.ChannelControl, `{"type":"signal","signal":"SIGNOPE"}`)
	c.send(apiv1.ChannelControl, `{"type":"later","cols":80}`)
	c.until("two error frames", func() bool { return len(c.control) == 3 })
	for _, frame := range c.control[1:] {
		if !strings.Contains(frame, `"type":"error"`) || !strings.Contains(frame, "invalid_argument") {
			t.Errorf("got %s", frame)
		}
	}
	close(hold)
	p.guest.await(t, "the input", func() bool { return p.guest.stdin.Len() == 128<<10 })
}

// TestInputOfAClientThatLeaves: what a client has sent before it closes in order gets to the process, also when the
// process takes its time and has something to say meanwhile.
func TestInputOfAClientThatLeaves(t *testing.T) {
	t.Parallel()
	p := newPlane(t, Limits{})
	hold := make(chan struct{})
	p.guest.edit(func() { p.guest.hold = hold })
	c := p.attach(t, "")
	c.send(apiv1.ChannelStdin, "first ")
	c.send(apiv1.ChannelStdin, "last")
	go func() { _ = c.conn.Close(websocket.StatusNormalClosure, "") }() // it waits for the answer
	p.guest.print(stdout, "output that nobody reads any more")
	close(hold)
	p.guest.await(t, "the input", func() bool { return p.guest.stdin.String() == "first last" })
	p.guest.await(t, "the end of the attachment", func() bool { return p.guest.streams == 0 })
}

func TestClientFaultsCloseTheConnection(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		kind websocket.MessageType
		data []byte
		code websocket.StatusCode
	}{
		"text":           {websocket.MessageText, []byte("\x00abc"), websocket.StatusUnsupportedData},
		"empty":          {websocket.MessageBinary, nil, websocket.StatusPolicyViolation},
		"stdout channel": {websocket.MessageBinary, []byte("\x01abc"), websocket.StatusPolicyViolation},
		"pty channel":    {websocket.MessageBinary, []byte("\x03abc"), websocket.StatusPolicyViolation},
		"bad control":    {websocket.MessageBinary, []byte("\x04{"), websocket.StatusPolicyViolation},
		"long control":   {websocket.MessageBinary, append([]byte{4}, bytes.Repeat([]byte(" "), 5000)...), websocket.StatusMessageTooBig},
		"long frame":     {websocket.MessageBinary, make([]byte, 1<<20+2), websocket.StatusMessageTooBig},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlane(t, Limits{})
			c := p.attach(t, "")
			if err := c.conn.Write(t.Context(), row.kind, row.data); err != nil {
				t.Fatal(err)
			}
			if closed := c.rest(); closed.Code != row.code {
				t.Errorf("closed with %v, want %v", closed, row.code)
			}
			p.guest.await(t, "the agent's stream ends", func() bool { return p.guest.streams == 0 })
		})
	}
}

func TestEndOfLifeIsToldByCloseCode(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		cause  error
		code   websocket.StatusCode
		reason string
	}{
		"lost":    {&LostError{Reason: "vmm_exit"}, 4003, "vmm_exit"},
		"long":    {&LostError{Reason: strings.Repeat("ü", 100)}, 4003, strings.Repeat("ü", 61)},
		"paused":  {&PausedError{Reason: "paused"}, 4002, "paused"},
		"full":    {&PausedError{Reason: "pool_full"}, 4002, "pool_full"},
		"restart": {ErrRestart, websocket.StatusServiceRestart, "restarting"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlane(t, Limits{})
			c := p.attach(t, "")
			p.end(row.cause)
			if closed := c.rest(); closed.Code != row.code || !strings.Contains(closed.Reason, row.reason) {
				t.Errorf("closed with %v", closed)
			}
		})
	}
}

// TestPauseWhileInputWaits: the calls that fail with the pause are no reason of their own.
func TestPauseWhileInputWaits(t *testing.T) {
	t.Parallel()
	for range 20 {
		p := newPlane(t, Limits{})
		c := p.attach(t, "")
		hold := make(chan struct{})
		p.guest.edit(func() { p.guest.hold = hold })
		c.send(apiv1.ChannelStdin, "waits")
		p.end(&PausedError{Reason: "paused"})
		p.guest.edit(func() { p.guest.broken = sandbox.Errorf(sandbox.CodeUnavailable, "the connection is closed") })
		close(hold)
		if closed := c.rest(); closed.Code != apiv1.CloseStopped {
			t.Errorf("closed with %v", closed)
		}
	}
}

func TestGapIsExplicit(t *testing.T) {
	t.Parallel()
	p := newPlane(t, Limits{})
	p.guest.edit(func() { p.guest.out[stdout], p.guest.dropped[stdout] = []byte("0123456789"), 6 })
	c := p.attach(t, "?stdout_offset=2")
	c.stdout("6789")
	want := `{"type":"gap","channel":1,"from":2,"to":6}`
	if diff := cmp.Diff(want, c.control[1]); diff != "" {
		t.Error(diff)
	}
}

func TestAgentThatComesBackIsAttachedAgain(t *testing.T) {
	t.Parallel()
	p := newPlane(t, Limits{})
	c := p.attach(t, "")
	p.guest.print(stdout, "before ")
	c.stdout("before ")
	away := sandbox.Errorf(sandbox.CodeUnavailable, "connection refused")
	p.guest.edit(func() { p.guest.broken = away })
	p.guest.await(t, "it is tried again", func() bool { return p.guest.attaches >= 3 })
	p.guest.edit(func() { p.guest.broken = nil })
	p.guest.print(stdout, "after")
	c.stdout("before after")
	if len(c.control) != 1 {
		t.Errorf("control frames %q", c.control)
	}
}

func TestAgentThatStaysAwayEndsTheConnection(t *testing.T) {
	t.Parallel()
	p := newPlane(t, Limits{GuestPatience: 200 * time.Millisecond})
	c := p.attach(t, "")
	p.guest.edit(func() { p.guest.broken = sandbox.Errorf(sandbox.CodeUnavailable, "connection refused") })
	if closed := c.rest(); closed.Code != websocket.StatusTryAgainLater {
		t.Errorf("closed with %v", closed)
	}
	if n := p.guest.attaches; n > 10 {
		t.Errorf("%d attempts in 200 ms", n)
	}
}

func TestLyingAgent(t *testing.T) {
	t.Parallel()
	proc := &agentv1.Process{State: agentv1.ProcessState_PROCESS_STATE_RUNNING}
	for name, script := range map[string][]*agentv1.AttachResponse{
		"hole":          {startedEvent(proc), dataEvent(stdout, 5, []byte("x"))},
		"again":         {startedEvent(proc), dataEvent(stdout, 0, []byte("x")), dataEvent(stdout, 0, []byte("x"))},
		"other stream":  {startedEvent(proc), dataEvent(9, 0, []byte("x"))},
		"gap backwards": {startedEvent(proc), gapEvent(stdout, 0, 0)},
		"gap elsewhere": {startedEvent(proc), gapEvent(stdout, 3, 9)},
		"started twice": {startedEvent(proc), startedEvent(proc)},
		"nothing":       {startedEvent(proc), {}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlane(t, Limits{})
			p.guest.script = script
			c := p.attach(t, "")
			if closed := c.rest(); closed.Code != 4003 || !strings.Contains(closed.Reason, "guest_fault") {
				t.Errorf("closed with %v", closed)
			}
		})
	}
}

func TestAgentThatDropsEveryStreamGetsNoBusyLoop(t *testing.T) {
	t.Parallel()
	p := newPlane(t, Limits{GuestPatience: 300 * time.Millisecond})
	p.guest.script = []*agentv1.AttachResponse{startedEvent(&agentv1.Process{})}
	c := p.attach(t, "")
	if closed := c.rest(); closed.Code != websocket.StatusTryAgainLater {
		t.Errorf("closed with %v", closed)
	}
	if n := p.guest.attaches; n > 10 {
		t.Errorf("%d attempts in 300 ms", n)
	}
}

func TestFirstAttachErrorIsAnHTTPAnswer(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		err    error
		status int
	}{
		{sandbox.Errorf(sandbox.CodeNotFound, "no such process"), 404},
		{sandbox.Errorf(sandbox.CodeInvalidArgument, "the offset lies behind the end"), 400},
		{sandbox.Errorf(sandbox.CodeGuestFault, "nonsense"), 502},
		{sandbox.Errorf(sandbox.CodeUnavailable, "connection refused"), 503},
		{errors.New("foreign"), 500},
	} {
		p := newPlane(t, Limits{GuestPatience: time.Millisecond})
		p.guest.edit(func() { p.guest.broken = row.err })
		_, resp, err := websocket.Dial(t.Context(), p.attachURL(""), &websocket.DialOptions{
			HTTPHeader: http.Header{"Authorization": {"Bearer " + p.token(t, nil)}}})
		if err == nil || resp.StatusCode != row.status || resp.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%v: %v, %+v", row.err, err, resp)
		}
	}
}
