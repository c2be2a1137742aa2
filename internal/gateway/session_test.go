package gateway

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/coder/websocket"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	gatewayv1 "github.com/space-sandbox/space/api/proto/gateway/v1"
	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

// TestCommandSession walks one command from AwaitReady to its acknowledged result.
func TestCommandSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.boot(w.newBox())
	ready, err := w.rpc().AwaitReady(t.Context(), connect.NewRequest(&gatewayv1.AwaitReadyRequest{SandboxId: b.route.SandboxId,
		Generation: 1, AgentToken: b.route.AgentToken, Hostname: "box"}))
	if err != nil || ready.Msg.GetAgentVersion() != "1.2.3" || len(ready.Msg.GetStages()) != 1 {
		t.Fatalf("ready: %v, %v", ready, err)
	}
	if b.machine.hostname.Load() != "box" || b.machine.entropy.Load() != 64 {
		t.Errorf("the machine got host name %v and %d bytes of entropy", b.machine.hostname.Load(), b.machine.entropy.Load())
	}
	watch := w.watch()
	if hello := until(t, watch, "hello", func(r *gatewayv1.WatchResponse) bool { return true }).GetHello(); hello == nil || hello.GetConfigured() {
		t.Fatalf("first event %v", watch.Msg())
	}
	w.configure()
	if _, err := w.rpc().Publish(t.Context(), connect.NewRequest(&gatewayv1.PublishRequest{Route: b.route})); err != nil {
		t.Fatal(err)
	}
	until(t, watch, "synced", func(r *gatewayv1.WatchResponse) bool { return r.GetSynced().GetSandboxId() == b.route.SandboxId })

	c := w.shell(b, `echo begin; cat; echo err >&2; exit 3`, true)
	ws := c.attach("")
	ws.untilStdout("begin\n")
	ws.send(apiv1.ChannelStdin, "over and ")
	ws.send(apiv1.ChannelStdin, "out\n")
	ws.untilStdout("begin\nover and out\n")
	ws.send(apiv1.ChannelControl, `{"type":"eof"}`)
	if closed := ws.rest(); closed.Code != 4000 || closed.Reason != "exited with code 3" {
		t.Errorf("closed with %v", closed)
	}
	if e := ws.exit(); e.Type != "exit" || e.ExitCode == nil || *e.ExitCode != 3 || ws.out[2].String() != "err\n" {
		t.Errorf("exit %+v, stderr %q", e, &ws.out[2])
	}
	ended := until(t, watch, "the exit", func(r *gatewayv1.WatchResponse) bool {
		return r.GetProcess().GetProcess().GetState() == agentv1.ProcessState_PROCESS_STATE_EXITED
	}).GetProcess()
	if ended.GetSandboxId() != b.route.SandboxId || ended.GetProcess().GetExitCode() != 3 || ended.GetProcess().GetStdinBytes() != 13 {
		t.Errorf("told %v", ended)
	}
	w.checkOutput(c)
	if _, err := w.rpc().AckProcesses(t.Context(), connect.NewRequest(&gatewayv1.AckProcessesRequest{
		SandboxId: b.route.SandboxId, ProcessIds: []string{string(c.proc)}})); err != nil {
		t.Error(err)
	}
}

// checkOutput reads "begin\nover and out\n" in two ways.
func (w *world) checkOutput(c *command) {
	w.t.Helper()
	res, err := w.rpc().ReadOutput(w.t.Context(), connect.NewRequest(&gatewayv1.ReadOutputRequest{SandboxId: c.box.route.SandboxId,
		ProcessId: string(c.proc), Stream: agentv1.OutputStream_OUTPUT_STREAM_STDOUT, Offset: 6, MaxBytes: 4}))
	if err != nil || string(res.Msg.GetData()) != "over" || !res.Msg.GetMore() || res.Msg.GetOffset() != 6 {
		w.t.Errorf("part: %v, %v", res, err)
	}
	res, err = w.rpc().ReadOutput(w.t.Context(), connect.NewRequest(&gatewayv1.ReadOutputRequest{SandboxId: c.box.route.SandboxId,
		ProcessId: string(c.proc), Stream: agentv1.OutputStream_OUTPUT_STREAM_STDOUT}))
	if err != nil || string(res.Msg.GetData()) != "begin\nover and out\n" || res.Msg.GetMore() {
		w.t.Errorf("all: %v, %v", res, err)
	}
}

func TestUnaryCallsOnAProcess(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.boot(w.newBox())
	w.configure(b)
	c := w.shell(b, "exec sleep 1000", false)
	start := &gatewayv1.StartProcessRequest{SandboxId: b.route.SandboxId, ProcessId: string(c.proc)}
	if p, err := w.rpc().StartProcess(t.Context(), connect.NewRequest(start)); err != nil || p.Msg.GetProcess().GetPid() == 0 {
		t.Errorf("start: %v, %v", p, err)
	}
	get := &gatewayv1.GetProcessRequest{SandboxId: b.route.SandboxId, ProcessId: string(c.proc)}
	if p, err := w.rpc().GetProcess(t.Context(), connect.NewRequest(get)); err != nil ||
		p.Msg.GetProcess().GetState() != agentv1.ProcessState_PROCESS_STATE_RUNNING {
		t.Errorf("get: %v, %v", p, err)
	}
	_, err := w.rpc().WriteStdin(t.Context(), connect.NewRequest(&gatewayv1.WriteStdinRequest{SandboxId: b.route.SandboxId,
		ProcessId: string(c.proc), Data: []byte("x")}))
	wantCode(t, err, sandbox.CodeStdinClosed)
	signal := func(name string) error {
		_, err := w.rpc().SignalProcess(t.Context(), connect.NewRequest(&gatewayv1.SignalProcessRequest{SandboxId: b.route.SandboxId,
			ProcessId: string(c.proc), Signal: name}))
		return err
	}
	wantCode(t, signal("SIGNOPE"), sandbox.CodeInvalidArgument)
	wantCode(t, signal("SIGKILL"), "")
	ws := c.attach("")
	if closed := ws.rest(); closed.Code != 4000 || ws.exit().Signal != "SIGKILL" {
		t.Errorf("closed with %v, %+v", closed, ws.exit())
	}
	get.ProcessId = string(sandbox.NewProcessID())
	_, err = w.rpc().GetProcess(t.Context(), connect.NewRequest(get))
	wantCode(t, err, sandbox.CodeNotFound)
	get.SandboxId = string(sandbox.NewID())
	_, err = w.rpc().GetProcess(t.Context(), connect.NewRequest(get))
	wantCode(t, err, sandbox.CodeNotFound)
}

// TestGatewayRestart: the command goes on; its output continues from the client's offset, and control hears of its end.
func TestGatewayRestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.boot(w.newBox())
	w.configure(b)
	c := w.shell(b, `printf 0123456789; read x; printf "$x"; exit 5`, true)
	ws := c.attach("")
	ws.untilStdout("0123456789")
	back := make(chan struct{})
	go func() { defer close(back); w.restart() }()
	closed := ws.rest()
	<-back
	if closed.Code != websocket.StatusServiceRestart {
		t.Errorf("closed with %v", closed)
	}
	_, _, err := websocket.Dial(t.Context(), w.data.URL+"/v1/attach/"+string(c.id), &websocket.DialOptions{
		HTTPHeader: http.Header{"Authorization": {"Bearer " + c.token}}})
	if err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("before Configure: %v", err)
	}
	watch := w.watch()
	w.configure(b)
	ws = c.attach("?stdout_offset=10&stderr_offset=end")
	ws.send(apiv1.ChannelStdin, "abc\n")
	if closed := ws.rest(); closed.Code != 4000 || ws.out[1].String() != "abc" {
		t.Errorf("closed with %v, stdout %q", closed, &ws.out[1])
	}
	until(t, watch, "exit code 5", func(r *gatewayv1.WatchResponse) bool { return r.GetProcess().GetProcess().GetExitCode() == 5 })
}

func TestTwoReadersAndPlainOutput(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.boot(w.newBox())
	w.configure(b)
	c := w.shell(b, `read x; printf "$x"`, true)
	one, two := c.attach(""), c.attach("")
	one.send(apiv1.ChannelStdin, "both\n")
	if x, y := one.rest(), two.rest(); x.Code != 4000 || y.Code != 4000 || one.out[1].String() != "both" || two.out[1].String() != "both" {
		t.Errorf("closed with %v and %v; %q and %q", x, y, &one.out[1], &two.out[1])
	}
	res := w.get("/v1/commands/" + string(c.id) + "/output?follow=true&offset=1&token=" + c.token)
	defer res.Body.Close()
	if body, err := io.ReadAll(res.Body); err != nil || string(body) != "oth" {
		t.Errorf("output %q, %v", body, err)
	}
}

// TestUnpublishEndsStreams: with the code that says so, and the next generation has connections of its own.
func TestUnpublishEndsStreams(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.boot(w.newBox())
	w.configure(b)
	c := w.shell(b, "echo up; exec sleep 1000", false)
	ws := c.attach("")
	ws.untilStdout("up\n")
	if _, err := w.rpc().Unpublish(t.Context(), connect.NewRequest(&gatewayv1.UnpublishRequest{SandboxId: b.route.SandboxId, Reason: "deleted"})); err != nil {
		t.Fatal(err)
	}
	if closed := ws.rest(); closed.Code != 4003 || closed.Reason != "deleted" {
		t.Errorf("closed with %v", closed)
	}
	w.eventually("all connections are closed", func() bool { return b.open.Load() == 0 })
	_, err := w.rpc().GetProcess(t.Context(), connect.NewRequest(&gatewayv1.GetProcessRequest{SandboxId: b.route.SandboxId, ProcessId: string(c.proc)}))
	wantCode(t, err, sandbox.CodeNotFound)

	dials := b.dials.Load()
	b.route.Generation = 2
	if _, err := w.rpc().Publish(t.Context(), connect.NewRequest(&gatewayv1.PublishRequest{Route: b.route})); err != nil {
		t.Fatal(err)
	}
	c.attach("").untilStdout("up\n")
	if b.dials.Load() == dials {
		t.Error("a connection of the earlier generation was used")
	}
}

// TestConnectionToTheAgentBreaks: streams and the watch find their way back by themselves.
func TestConnectionToTheAgentBreaks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.boot(w.newBox())
	w.configure(b)
	watch := w.watch()
	synced := func(r *gatewayv1.WatchResponse) bool { return r.GetSynced() != nil }
	until(t, watch, "synced", synced)
	c := w.shell(b, `echo before; read x; echo "$x"`, true)
	ws := c.attach("")
	ws.untilStdout("before\n")
	b.cut()
	until(t, watch, "synced again", synced)
	ws.send(apiv1.ChannelStdin, "after\n")
	if closed := ws.rest(); closed.Code != 4000 || ws.out[1].String() != "before\nafter\n" {
		t.Errorf("closed with %v, stdout %q", closed, &ws.out[1])
	}
	until(t, watch, "the exit", func(r *gatewayv1.WatchResponse) bool {
		return r.GetProcess().GetProcess().GetState() == agentv1.ProcessState_PROCESS_STATE_EXITED
	})
}

// TestConfigureKeepsWhatStays: streams of routes that stay go on, others end.
func TestConfigureKeepsWhatStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stays, goes := w.boot(w.newBox()), w.boot(w.newBox())
	w.configure(stays, goes)
	a := w.shell(stays, `echo up; read x; echo "$x"`, true).attach("")
	b := w.shell(goes, `echo up; read x`, true).attach("")
	a.untilStdout("up\n")
	b.untilStdout("up\n")
	w.configure(stays)
	if closed := b.rest(); closed.Code != 4003 {
		t.Errorf("the one that goes closed with %v", closed)
	}
	a.send(apiv1.ChannelStdin, "still\n")
	if closed := a.rest(); closed.Code != 4000 || a.out[1].String() != "up\nstill\n" {
		t.Errorf("the one that stays closed with %v, stdout %q", closed, &a.out[1])
	}
}

// TestConfigureKeepsNewSessions: one that was made while control put its list together is not forgotten.
func TestConfigureKeepsNewSessions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.boot(w.newBox())
	w.configure(b)
	c := w.shell(b, "echo made; exit 5", false)
	b.route.Sessions = nil // the list is older than the session
	w.configure(b)
	a := c.attach("")
	if closed := a.rest(); closed.Code != 4000 || a.out[1].String() != "made\n" {
		t.Errorf("closed with %v, stdout %q", closed, &a.out[1])
	}
}

func (w *world) eventually(what string, cond func() bool) {
	w.t.Helper()
	if !within(20*time.Second, cond) {
		w.t.Fatalf("never: %s", what)
	}
}

func within(limit time.Duration, cond func() bool) bool {
	deadline := time.After(limit)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			return false
		}
	}
	return true
}

// TestFollowOutput starts a process and follows it to its end over one stream; a second call starts nothing.
func TestFollowOutput(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.boot(w.newBox())
	w.configure(b)
	c := w.shell(b, "echo out; echo err >&2; exit 3", false)
	for _, start := range []bool{true, false} {
		stream, err := w.rpc().FollowOutput(t.Context(), connect.NewRequest(&gatewayv1.FollowOutputRequest{SandboxId: b.route.SandboxId,
			ProcessId: string(c.proc), Start: start, Positions: []*agentv1.StreamPosition{
				{Stream: agentv1.OutputStream_OUTPUT_STREAM_STDOUT}, {Stream: agentv1.OutputStream_OUTPUT_STREAM_STDERR}}}))
		if err != nil {
			t.Fatal(err)
		}
		said := map[agentv1.OutputStream]string{}
		var exit *agentv1.Process
		for stream.Receive() {
			if data := stream.Msg().GetData(); data != nil {
				said[data.GetStream()] += string(data.GetData())
			}
			exit = stream.Msg().GetExit()
		}
		if err := stream.Err(); err != nil {
			t.Error(err)
		}
		if said[agentv1.OutputStream_OUTPUT_STREAM_STDOUT] != "out\n" || said[agentv1.OutputStream_OUTPUT_STREAM_STDERR] != "err\n" || exit.GetExitCode() != 3 {
			t.Errorf("start %v: %q, %v", start, said, exit)
		}
		if err := stream.Close(); err != nil {
			t.Error(err)
		}
	}
}
