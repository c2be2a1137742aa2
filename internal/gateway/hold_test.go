package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/coder/websocket"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	gatewayv1 "github.com/space-sandbox/space/api/proto/gateway/v1"
	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/rpc"
	"github.com/space-sandbox/space/internal/sandbox"
)

// publish makes a box reachable or, with a reason, holds it.
func (w *world) publish(b *box, held string) {
	w.t.Helper()
	b.route.Held = held
	if _, err := w.rpc().Publish(w.t.Context(), connect.NewRequest(&gatewayv1.PublishRequest{Route: b.route})); err != nil {
		w.t.Fatalf("publish: %v", err)
	}
}

// dialError is what an attach is refused with.
func (c *command) dialError() string {
	c.w.t.Helper()
	conn, res, err := websocket.Dial(c.w.t.Context(), c.w.data.URL+"/v1/attach/"+string(c.id), &websocket.DialOptions{
		HTTPHeader: http.Header{"Authorization": {"Bearer " + c.token}}})
	if err == nil {
		conn.CloseNow()
		c.w.t.Fatal("attached")
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		c.w.t.Fatal(err)
	}
	return fmt.Sprint(res.StatusCode, " ", string(body))
}

// TestSessionOverAHold: a session's streams end with the code that says why; it goes on, ends while nobody can see it,
// and everything arrives afterwards.
func TestSessionOverAHold(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.boot(w.newBox())
	w.configure(b)
	watch := w.watch()
	until(t, watch, "synced", func(r *gatewayv1.WatchResponse) bool { return r.GetSynced() != nil })
	release := filepath.Join(w.dir, "go")
	c := w.shell(b, `printf 0123; read x; printf "$x"; until [ -e `+release+` ]; do sleep 0.01; done; printf end; exit 7`, true)
	ws := c.attach("")
	ws.untilStdout("0123")
	ws.send(apiv1.ChannelStdin, "45\n")
	ws.untilStdout("012345")
	w.publish(b, "paused")
	if closed := ws.rest(); closed.Code != apiv1.CloseStopped || closed.Reason != "paused" {
		t.Errorf("closed with %v", closed)
	}
	w.eventually("all connections are closed", func() bool { return b.open.Load() == 0 })
	if err := os.WriteFile(release, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if refused := c.dialError(); !strings.HasPrefix(refused, "409 ") || !strings.Contains(refused, "invalid_state") || !strings.Contains(refused, "space resume") {
		t.Errorf("attach while held: %s", refused)
	}
	w.publish(b, "pool_full")
	if refused := c.dialError(); !strings.Contains(refused, "pool_full") || strings.Contains(refused, "space resume") {
		t.Errorf("attach while the pool is full: %s", refused)
	}
	w.publish(b, "")
	ended := until(t, watch, "the exit", func(r *gatewayv1.WatchResponse) bool {
		return r.GetProcess().GetProcess().GetState() == agentv1.ProcessState_PROCESS_STATE_EXITED
	}).GetProcess().GetProcess()
	if ended.GetProcessId() != string(c.proc) || ended.GetExitCode() != 7 {
		t.Errorf("told %v", ended)
	}
	ws = c.attach("?stdout_offset=6")
	if closed := ws.rest(); closed.Code != apiv1.CloseExit || ws.out[1].String() != "end" || *ws.exit().ExitCode != 7 {
		t.Errorf("closed with %v, stdout %q, %+v", closed, &ws.out[1], ws.exit())
	}
}

// TestHoldEndsWhatIsUnderWay: nothing hangs, and nothing that was cut off looks complete.
func TestHoldEndsWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.boot(w.newBox())
	w.configure(b)
	c := w.shell(b, `echo up; exec sleep 1000`, true)
	c.attach("").untilStdout("up\n")
	reader := w.get("/v1/commands/" + string(c.id) + "/output?follow=true&token=" + c.token)
	defer reader.Body.Close()
	follow, err := w.rpc().FollowOutput(t.Context(), connect.NewRequest(&gatewayv1.FollowOutputRequest{SandboxId: b.route.SandboxId, ProcessId: string(c.proc),
		Positions: []*agentv1.StreamPosition{{Stream: agentv1.OutputStream_OUTPUT_STREAM_STDOUT}}}))
	if err != nil || !follow.Receive() || !follow.Receive() {
		t.Fatalf("follow: %v", err)
	}
	defer follow.Close()
	target := filepath.Join(w.dir, "target")
	ended := map[string]chan string{"upload": w.upload(b, target), "stdin": w.flood(c), "call": w.write(c), "download": w.download(b)}
	w.publish(b, "paused")
	if body, err := io.ReadAll(reader.Body); err == nil || string(body) != "up\n" {
		t.Errorf("the output ended with %v after %q", err, body)
	}
	for follow.Receive() {
		t.Errorf("followed %v", follow.Msg())
	}
	if wantCode(t, rpc.FromConnect(follow.Err()), sandbox.CodeUnavailable); !strings.Contains(follow.Err().Error(), "paused") {
		t.Errorf("follow: %v", follow.Err())
	}
	for what, want := range map[string]string{"upload": "409 invalid_state", "stdin": "409 invalid_state", "call": "invalid_state", "download": "cut"} {
		if got := <-ended[what]; got != want {
			t.Errorf("%s ended with %q, want %q", what, got, want)
		}
	}
	w.eventually("all connections are closed", func() bool { return b.open.Load() == 0 })
	if _, err := os.Stat(target); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("half a file is there: %v", err)
	}
}

// raised runs call and returns where its outcome comes; call's argument is to be called when it is under way.
func raised(w *world, call func(under func()) string) chan string {
	w.t.Helper()
	under, out := make(chan struct{}), make(chan string, 1)
	go func() { out <- call(func() { close(under) }) }()
	select {
	case <-under:
	case <-time.After(20 * time.Second):
		w.t.Fatal("it never began")
	}
	return out
}

// verdict is a raw request's outcome.
func (w *world) verdict(method, path string, body io.Reader) string {
	req, err := http.NewRequestWithContext(w.t.Context(), method, rpc.BaseURL+path, body)
	if err != nil {
		return err.Error()
	}
	res, err := w.control.Do(req)
	if err != nil {
		return err.Error()
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		return "cut"
	}
	if strings.Contains(string(data), "invalid_state") {
		return fmt.Sprint(res.StatusCode, " invalid_state")
	}
	return fmt.Sprint(res.StatusCode, " ", len(data), " bytes")
}

// upload begins a file whose end never comes.
func (w *world) upload(b *box, target string) chan string {
	return raised(w, func(under func()) string {
		r, out := io.Pipe()
		defer r.Close()
		go func() {
			for i := range 64 { // more than fits the buffers on the way
				if _, err := out.Write(make([]byte, 64<<10)); err != nil {
					return
				}
				if i == 63 {
					under()
				}
			}
		}()
		return w.verdict("PUT", filesPath(b, "path", target), r)
	})
}

// download begins a file that is larger than what fits the buffers on the way, and reads it after the hold.
func (w *world) download(b *box) chan string {
	big := filepath.Join(w.dir, "big")
	if err := os.WriteFile(big, nil, 0o644); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Truncate(big, 256<<20); err != nil {
		w.t.Fatal(err)
	}
	return raised(w, func(under func()) string {
		req, err := http.NewRequestWithContext(w.t.Context(), "GET", rpc.BaseURL+filesPath(b, "path", big), nil)
		if err != nil {
			return err.Error()
		}
		res, err := w.control.Do(req)
		if err != nil {
			return err.Error()
		}
		defer res.Body.Close()
		under()
		w.eventually("the link has ended", func() bool { return b.open.Load() == 0 })
		if n, err := io.Copy(io.Discard, res.Body); err == nil {
			return fmt.Sprint(n, " bytes")
		}
		return "cut"
	})
}

// flood writes more to a command that does not read than fits its pipe.
func (w *world) flood(c *command) chan string {
	return raised(w, func(under func()) string {
		return w.verdict("POST", "/raw/sandboxes/"+c.box.route.SandboxId+"/processes/"+string(c.proc)+"/stdin",
			&movingReader{strings.NewReader(strings.Repeat("x", 1<<20)), onceDone(under)})
	})
}

// onceDone calls f the first time.
func onceDone(f func()) func() {
	called := false
	return func() {
		if !called {
			called = true
			f()
		}
	}
}

// write makes a call that waits for the command to read. It ends in the same way when it comes too late to begin.
func (w *world) write(c *command) chan string {
	return raised(w, func(under func()) string {
		under()
		_, err := w.rpc().WriteStdin(w.t.Context(), connect.NewRequest(&gatewayv1.WriteStdinRequest{SandboxId: c.box.route.SandboxId,
			ProcessId: string(c.proc), Data: make([]byte, 256<<10)}))
		return string(sandbox.CodeOf(err))
	})
}

// TestCallsWhileHeld are refused with what helps, whichever they are; only readiness is not, and following waits.
func TestCallsWhileHeld(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.boot(w.newBox())
	w.configure(b)
	c := w.shell(b, `echo up; exec sleep 1000`, true)
	c.attach("").untilStdout("up\n")
	w.publish(b, "paused")
	id, process := b.route.SandboxId, string(c.proc)
	for name, err := range map[string]error{
		"create": second(w.rpc().CreateProcess(t.Context(), connect.NewRequest(&gatewayv1.CreateProcessRequest{SandboxId: id, CommandId: string(sandbox.NewCommandID()),
			ProcessId: string(sandbox.NewProcessID()), Spec: &agentv1.ProcessSpec{Argv: []string{"true"}}}))),
		"start":  second(w.rpc().StartProcess(t.Context(), connect.NewRequest(&gatewayv1.StartProcessRequest{SandboxId: id, ProcessId: process}))),
		"get":    second(w.rpc().GetProcess(t.Context(), connect.NewRequest(&gatewayv1.GetProcessRequest{SandboxId: id, ProcessId: process}))),
		"signal": second(w.rpc().SignalProcess(t.Context(), connect.NewRequest(&gatewayv1.SignalProcessRequest{SandboxId: id, ProcessId: process, Signal: "SIGTERM"}))),
		"resize": second(w.rpc().ResizeProcess(t.Context(), connect.NewRequest(&gatewayv1.ResizeProcessRequest{SandboxId: id, ProcessId: process}))),
		"stdin":  second(w.rpc().WriteStdin(t.Context(), connect.NewRequest(&gatewayv1.WriteStdinRequest{SandboxId: id, ProcessId: process}))),
		"read": second(w.rpc().ReadOutput(t.Context(), connect.NewRequest(&gatewayv1.ReadOutputRequest{SandboxId: id, ProcessId: process,
			Stream: agentv1.OutputStream_OUTPUT_STREAM_STDOUT}))),
		"follow": w.startAndFollow(c),
		"ack":    second(w.rpc().AckProcesses(t.Context(), connect.NewRequest(&gatewayv1.AckProcessesRequest{SandboxId: id, ProcessIds: []string{process}}))),
	} {
		e := sandbox.AsError(err)
		if e.Code != sandbox.CodeInvalidState || !strings.Contains(e.Remedy, "space resume "+id) {
			t.Errorf("%s: %v, remedy %q", name, err, e.Remedy)
		}
	}
	if got := w.verdict("GET", filesPath(b, "path", "/etc/passwd"), nil); got != "409 invalid_state" {
		t.Errorf("file: %s", got)
	}
	res := w.get("/v1/commands/" + string(c.id) + "/output?token=" + c.token)
	res.Body.Close()
	if res.StatusCode != 409 {
		t.Errorf("output: %d", res.StatusCode)
	}
	before := b.machine.sets.Load()
	for n := range int64(2) {
		if err := w.awaitReady(t.Context(), b, b.route.AgentToken); err != nil || b.machine.sets.Load() != before+n+1 {
			t.Errorf("ready: %v; the clock was set %d times", err, b.machine.sets.Load())
		}
	}
	w.followAcross(c)
}

// startAndFollow is what a stream that is also to start its command ends with.
func (w *world) startAndFollow(c *command) error {
	s, err := w.rpc().FollowOutput(w.t.Context(), connect.NewRequest(&gatewayv1.FollowOutputRequest{SandboxId: c.box.route.SandboxId,
		ProcessId: string(c.proc), Start: true}))
	if err != nil {
		return err
	}
	defer s.Close()
	for s.Receive() {
		w.t.Errorf("followed %v", s.Msg())
	}
	return rpc.FromConnect(s.Err())
}

func second[T any](_ T, err error) error { return err }

// followAcross follows a held command: it waits, and goes on after the hold.
func (w *world) followAcross(c *command) {
	w.t.Helper()
	follow := func(ctx context.Context) (*connect.ServerStreamForClient[agentv1.AttachResponse], error) {
		return w.rpc().FollowOutput(ctx, connect.NewRequest(&gatewayv1.FollowOutputRequest{SandboxId: c.box.route.SandboxId, ProcessId: string(c.proc),
			Positions: []*agentv1.StreamPosition{{Stream: agentv1.OutputStream_OUTPUT_STREAM_STDOUT, Offset: 1}}}))
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), 50*time.Millisecond)
	defer cancel()
	s, err := follow(ctx)
	if err == nil {
		defer s.Close()
		if s.Receive() {
			w.t.Errorf("followed a held command: %v", s.Msg())
		}
		err = s.Err()
	}
	if code := sandbox.CodeOf(rpc.FromConnect(err)); code != sandbox.CodeCanceled && code != sandbox.CodeDeadline {
		w.t.Errorf("follow: %v", err)
	}
	got := make(chan string, 1)
	go func() {
		s, err := follow(w.t.Context())
		if err != nil || !s.Receive() || !s.Receive() {
			got <- fmt.Sprint(err)
			return
		}
		defer s.Close()
		got <- string(s.Msg().GetData().GetData())
	}()
	w.publish(c.box, "")
	if text := <-got; text != "p\n" {
		w.t.Errorf("followed to %q", text)
	}
}

// TestGatewayRestartWhileHeld: the hold comes back with Configure. Nobody knocks at the machine, nothing is said of its
// processes, and nothing is lost when it goes on.
func TestGatewayRestartWhileHeld(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b, other := w.boot(w.newBox()), w.boot(w.newBox())
	w.configure(b)
	c := w.shell(b, `printf abc; read x; printf "$x"; exit 4`, true)
	c.attach("").untilStdout("abc")
	w.publish(b, "paused")
	w.eventually("all connections are closed", func() bool { return b.open.Load() == 0 })
	w.restart()
	tries := b.tries.Load()
	watch := w.watch()
	w.configure(b, other)
	until(t, watch, "the other is synced", func(r *gatewayv1.WatchResponse) bool {
		if r.GetProcess().GetSandboxId() == b.route.SandboxId || r.GetSynced().GetSandboxId() == b.route.SandboxId {
			t.Errorf("told of the held one: %v", r)
		}
		return r.GetSynced().GetSandboxId() == other.route.SandboxId
	})
	if refused := c.dialError(); !strings.HasPrefix(refused, "409 ") {
		t.Errorf("attach: %s", refused)
	}
	if n := b.tries.Load(); n != tries {
		t.Errorf("the held machine was dialed %d times", n-tries)
	}
	b.route.Held = ""
	w.configure(b, other)
	ws := c.attach("?stdout_offset=3")
	ws.send(apiv1.ChannelStdin, "def\n")
	if closed := ws.rest(); closed.Code != apiv1.CloseExit || ws.out[1].String() != "def" {
		t.Errorf("closed with %v, stdout %q", closed, &ws.out[1])
	}
	until(t, watch, "the exit", func(r *gatewayv1.WatchResponse) bool { return r.GetProcess().GetProcess().GetExitCode() == 4 })
}

// TestControlRestartWhileHeld: a new watch still gets what was known when the machine was held.
func TestControlRestartWhileHeld(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.boot(w.newBox())
	w.configure(b)
	watch := w.watch()
	c := w.shell(b, `exit 6`, false)
	c.attach("").rest()
	exit := func(r *gatewayv1.WatchResponse) bool { return r.GetProcess().GetProcess().GetExitCode() == 6 }
	until(t, watch, "the exit", exit)
	w.configure(b) // sessions as they are: the route stays
	w.publish(b, "paused")
	watch.Close()
	watch = w.watch()
	until(t, watch, "the exit again", exit)
	until(t, watch, "synced", func(r *gatewayv1.WatchResponse) bool { return r.GetSynced() != nil })
	if _, err := w.rpc().Unpublish(t.Context(), connect.NewRequest(&gatewayv1.UnpublishRequest{SandboxId: b.route.SandboxId, Reason: "deleted"})); err != nil {
		t.Fatal(err)
	}
	_, err := w.rpc().GetProcess(t.Context(), connect.NewRequest(&gatewayv1.GetProcessRequest{SandboxId: b.route.SandboxId, ProcessId: string(c.proc)}))
	wantCode(t, err, sandbox.CodeNotFound)
}

// TestHoldsAreChecked: why a machine is held is one word, since it goes to clients.
func TestHoldsAreChecked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.newBox()
	w.configure()
	for _, held := range []string{"Paused!", "a b", strings.Repeat("x", 33)} {
		b.route.Held = held
		_, err := w.rpc().Publish(t.Context(), connect.NewRequest(&gatewayv1.PublishRequest{Route: b.route}))
		wantCode(t, err, sandbox.CodeInvalidArgument)
	}
}
