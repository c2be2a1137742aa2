package gateway

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/coder/websocket"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/api/proto/agent/v1/agentv1connect"
	gatewayv1 "github.com/space-sandbox/space/api/proto/gateway/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

// liar speaks the agent's protocol and says what is not so.
type liar struct {
	agentv1connect.UnimplementedAgentServiceHandler
}

func (liar) CreateProcess(context.Context, *connect.Request[agentv1.CreateProcessRequest]) (*connect.Response[agentv1.CreateProcessResponse], error) {
	return connect.NewResponse(&agentv1.CreateProcessResponse{Process: &agentv1.Process{ProcessId: string(sandbox.NewProcessID()),
		State: agentv1.ProcessState_PROCESS_STATE_CREATED}}), nil
}

func (liar) Attach(_ context.Context, req *connect.Request[agentv1.AttachRequest], s *connect.ServerStream[agentv1.AttachResponse]) error {
	data := &agentv1.AttachResponse{Event: &agentv1.AttachResponse_Data_{Data: &agentv1.AttachResponse_Data{
		Stream: agentv1.OutputStream_OUTPUT_STREAM_STDOUT, Offset: 77, Data: []byte("x")}}}
	started := &agentv1.AttachResponse{Event: &agentv1.AttachResponse_Started{Started: &agentv1.Process{ProcessId: req.Msg.GetProcessId(),
		State: agentv1.ProcessState_PROCESS_STATE_RUNNING, Pid: 1, StdoutBytes: 100}}}
	if err := s.Send(started); err != nil {
		return err
	}
	return s.Send(data)
}

// WatchProcesses invents processes without end.
func (liar) WatchProcesses(ctx context.Context, _ *connect.Request[agentv1.WatchProcessesRequest], s *connect.ServerStream[agentv1.WatchProcessesResponse]) error {
	if err := s.Send(&agentv1.WatchProcessesResponse{Event: &agentv1.WatchProcessesResponse_Synced{Synced: true}}); err != nil {
		return err
	}
	for ctx.Err() == nil {
		p := &agentv1.Process{ProcessId: string(sandbox.NewProcessID()), State: agentv1.ProcessState_PROCESS_STATE_CREATED}
		if err := s.Send(&agentv1.WatchProcessesResponse{Event: &agentv1.WatchProcessesResponse_Process{Process: p}}); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// garbage answers every connection with bytes that mean nothing, or not at all.
func (w *world) garbage(b *box, answer string) {
	w.t.Helper()
	l, err := net.Listen("unix", b.socket)
	if err != nil {
		w.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.WriteString(c, answer) // the other end may not listen
				_, _ = io.Copy(io.Discard, c)
			}()
		}
	}()
	w.t.Cleanup(func() {
		w.stop()
		l.Close()
		<-ended
	})
}

// TestHostileAgents: whatever an agent does, calls end with an error in their time, the data plane answers, control
// hears of no invented process, and the gateway's end leaves no connection and no goroutine.
//
// Not parallel: it counts the goroutines of this process.
func TestHostileAgents(t *testing.T) {
	before := runtime.NumGoroutine()
	t.Run("world", func(t *testing.T) {
		w := newWorld(t)
		boxes := map[string]*box{"silent": w.newBox(), "noise": w.newBox(), "html": w.newBox(), "endless": w.newBox(), "liar": w.newBox()}
		w.garbage(boxes["silent"], "")
		w.garbage(boxes["noise"], strings.Repeat("\x00\xff\x13\x37", 1<<16))
		w.serve(boxes["html"], http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprint(rw, "<html>") }))
		w.serve(boxes["endless"], http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Content-Type", r.Header.Get("Content-Type"))
			for chunk := make([]byte, 64<<10); r.Context().Err() == nil; {
				if _, err := rw.Write(chunk); err != nil {
					return
				}
			}
		}))
		mux := http.NewServeMux()
		mux.Handle(agentv1connect.NewAgentServiceHandler(liar{}))
		w.serve(boxes["liar"], mux)
		watch := w.watch()
		for name, b := range boxes {
			b.route.Sessions = []*gatewayv1.Session{{CommandId: string(sandbox.NewCommandID()), ProcessId: string(sandbox.NewProcessID())}}
			w.configure(b)
			w.probe(name, b)
		}
		w.configure()
		w.stop()
		for watch.Receive() {
			if p := watch.Msg().GetProcess(); p != nil {
				t.Errorf("control heard of %v", p)
			}
		}
		for name, b := range boxes {
			if n := b.open.Load(); n != 0 {
				t.Errorf("%s: %d connections stay open", name, n)
			}
		}
	})
	if !within(10*time.Second, func() bool { return runtime.NumGoroutine() <= before }) {
		stacks := make([]byte, 1<<20)
		t.Fatalf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
	}
}

// probe makes every kind of call to a hostile agent.
func (w *world) probe(name string, b *box) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Second)
	defer cancel()
	s := b.route.Sessions[0]
	_, err := w.rpc().CreateProcess(ctx, connect.NewRequest(&gatewayv1.CreateProcessRequest{SandboxId: b.route.SandboxId,
		CommandId: string(sandbox.NewCommandID()), ProcessId: string(sandbox.NewProcessID()), Spec: &agentv1.ProcessSpec{Argv: []string{"x"}}}))
	w.wantFault(name+": create", err)
	_, err = w.rpc().ReadOutput(ctx, connect.NewRequest(&gatewayv1.ReadOutputRequest{SandboxId: b.route.SandboxId, ProcessId: s.ProcessId,
		Stream: agentv1.OutputStream_OUTPUT_STREAM_STDOUT}))
	w.wantFault(name+": output", err)
	c := &command{w: w, box: b, id: sandbox.CommandID(s.CommandId), proc: sandbox.ProcessID(s.ProcessId)}
	c.sign()
	conn, res, err := websocket.Dial(ctx, w.data.URL+"/v1/attach/"+string(c.id), &websocket.DialOptions{
		HTTPHeader: http.Header{"Authorization": {"Bearer " + c.token}}})
	if err == nil { // only the liar comes as far as an upgrade
		_, _, err = conn.Read(ctx) // started
		if err == nil {
			_, _, err = conn.Read(ctx)
		}
		if websocket.CloseStatus(err) != 4003 {
			w.t.Errorf("%s: attach ended with %v", name, err)
		}
		conn.CloseNow()
	} else if ctx.Err() == nil && (res == nil || res.StatusCode < 500) {
		w.t.Errorf("%s: attach: %v, %+v", name, err, res)
	}
}

func (w *world) wantFault(what string, err error) {
	w.t.Helper()
	switch sandbox.CodeOf(err) {
	case sandbox.CodeGuestFault, sandbox.CodeUnavailable, sandbox.CodeGuestNotReady, sandbox.CodeDeadline:
	default:
		w.t.Errorf("%s: %v", what, err)
	}
}

// pipeListener accepts the other ends of net.Pipe, which buffer nothing.
type pipeListener chan net.Conn

func (l pipeListener) Accept() (net.Conn, error) {
	c, ok := <-l
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (l pipeListener) Close() error   { return nil }
func (l pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

// TestSlowReaderOf20MiB: while the agent's spool is full because a client does not read, the gateway holds next to
// nothing; then the client gets every byte.
func TestSlowReaderOf20MiB(t *testing.T) {
	t.Parallel()
	const size, spool, most = 20 << 20, 16 << 20, 1 << 20
	w := newWorld(t)
	b := w.boot(w.newBox())
	w.configure(b)
	c := w.shell(b, fmt.Sprintf("exec head -c %d /dev/zero", size), false)
	l := make(pipeListener)
	srv := &http.Server{Handler: w.g.DataHandler(), ReadHeaderTimeout: time.Minute}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		l <- theirs
		return ours, nil
	}}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		close(l)
		srv.Close()
		<-served
	})
	req, err := http.NewRequestWithContext(t.Context(), "GET", "http://space/v1/commands/"+string(c.id)+"/output?follow=true&token="+c.token, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	w.eventually("the spool is full", func() bool {
		p, err := w.rpc().GetProcess(t.Context(), connect.NewRequest(&gatewayv1.GetProcessRequest{SandboxId: b.route.SandboxId, ProcessId: string(c.proc)}))
		return err == nil && p.Msg.GetProcess().GetStdoutBytes() >= spool
	})
	if n := b.read.Load(); n > most {
		t.Errorf("the gateway took %d bytes for a client that reads none", n)
	}
	total, buf := int64(0), make([]byte, 64<<10)
	for {
		n, err := res.Body.Read(buf)
		total += int64(n)
		if ahead := b.read.Load() - total; ahead > most {
			t.Fatalf("the gateway is %d bytes ahead of its client", ahead)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("after %d bytes: %v", total, err)
		}
	}
	if total != size {
		t.Errorf("got %d of %d bytes", total, size)
	}
}
