package control_test

import (
	"context"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	gatewayv1 "github.com/space-sandbox/space/api/proto/gateway/v1"
	"github.com/space-sandbox/space/api/proto/gateway/v1/gatewayv1connect"
	"github.com/space-sandbox/space/internal/problem"
	"github.com/space-sandbox/space/internal/sandbox"
)

// fakeGuests are the agents of all guests: they outlive a restart of the gateway. A process ends when its argv[0] is
// "true", fails when it is "missing", and else runs until it is signaled or finish is called; "cat" echoes.
type fakeGuests struct {
	mu        sync.Mutex
	processes map[string]*fakeProcess // by sandbox/process
	watchers  map[chan *gatewayv1.WatchResponse]struct{}
	acked     []string
	starts    map[string]int
}

type fakeProcess struct {
	box    string
	spec   *agentv1.ProcessSpec
	p      *agentv1.Process
	stdout []byte
}

func newFakeGuests() *fakeGuests {
	return &fakeGuests{processes: map[string]*fakeProcess{}, watchers: map[chan *gatewayv1.WatchResponse]struct{}{}, starts: map[string]int{}}
}

// fakeGateway is one life of the gateway process.
type fakeGateway struct {
	gatewayv1connect.UnimplementedGatewayServiceHandler
	hook
	guests *fakeGuests

	mu         sync.Mutex
	configured bool
	verifyKey  []byte
	routes     map[string]*gatewayv1.Route
	ends       map[string]chan struct{} // of routes that are followed
	requests   []*http.Request          // raw ones
}

func newFakeGateway(g *fakeGuests) *fakeGateway {
	return &fakeGateway{guests: g, routes: map[string]*gatewayv1.Route{}, ends: map[string]chan struct{}{}}
}

func (g *fakeGateway) routed() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Sorted(maps.Keys(g.routes))
}

// held is why a routed sandbox stands still, "" for one that does not, and "no route".
func (g *fakeGateway) held(id string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.routes[id] == nil {
		return "no route"
	}
	return g.routes[id].Held
}

func (g *fakeGateway) sessions(id string) (out []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range g.routes[id].GetSessions() {
		out = append(out, s.CommandId)
	}
	return out
}

func (g *fakeGateway) Configure(ctx context.Context, req *connect.Request[gatewayv1.ConfigureRequest]) (*connect.Response[gatewayv1.ConfigureResponse], error) {
	if err := g.enter(ctx, "Configure", ""); err != nil {
		return nil, err
	}
	g.mu.Lock()
	g.configured, g.verifyKey = true, req.Msg.VerifyKey
	g.routes = map[string]*gatewayv1.Route{}
	for _, r := range req.Msg.Routes {
		g.routes[r.SandboxId] = r
	}
	g.mu.Unlock()
	for _, r := range req.Msg.Routes {
		g.guests.resync(r.SandboxId)
	}
	return connect.NewResponse(&gatewayv1.ConfigureResponse{}), nil
}

func (g *fakeGateway) AwaitReady(ctx context.Context, req *connect.Request[gatewayv1.AwaitReadyRequest]) (*connect.Response[gatewayv1.AwaitReadyResponse], error) {
	if err := g.enter(ctx, "AwaitReady", req.Msg.SandboxId); err != nil {
		return nil, err
	}
	return connect.NewResponse(&gatewayv1.AwaitReadyResponse{Stages: []*agentv1.Stage{{Name: "init", Ms: 1}}}), nil
}

func (g *fakeGateway) Publish(ctx context.Context, req *connect.Request[gatewayv1.PublishRequest]) (*connect.Response[gatewayv1.PublishResponse], error) {
	if err := g.enter(ctx, "Publish", req.Msg.Route.SandboxId); err != nil {
		return nil, err
	}
	g.mu.Lock()
	if !g.configured {
		g.mu.Unlock()
		return nil, sandbox.Errorf(sandbox.CodeUnavailable, "not configured")
	}
	g.routes[req.Msg.Route.SandboxId] = req.Msg.Route
	g.mu.Unlock()
	g.guests.resync(req.Msg.Route.SandboxId)
	return connect.NewResponse(&gatewayv1.PublishResponse{}), nil
}

func (g *fakeGateway) Unpublish(ctx context.Context, req *connect.Request[gatewayv1.UnpublishRequest]) (*connect.Response[gatewayv1.UnpublishResponse], error) {
	if err := g.enter(ctx, "Unpublish", req.Msg.SandboxId); err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.routes, req.Msg.SandboxId)
	if end := g.ends[req.Msg.SandboxId]; end != nil {
		close(end)
		delete(g.ends, req.Msg.SandboxId)
	}
	return connect.NewResponse(&gatewayv1.UnpublishResponse{}), nil
}

func (g *fakeGateway) Watch(ctx context.Context, _ *connect.Request[gatewayv1.WatchRequest], s *connect.ServerStream[gatewayv1.WatchResponse]) error {
	if err := g.enter(ctx, "Watch", ""); err != nil {
		return err
	}
	events := make(chan *gatewayv1.WatchResponse, 4096)
	defer g.guests.subscribe(events)()
	if err := s.Send(&gatewayv1.WatchResponse{Event: &gatewayv1.WatchResponse_Hello_{Hello: &gatewayv1.WatchResponse_Hello{InstanceId: "g"}}}); err != nil {
		return err
	}
	for {
		select {
		case e := <-events:
			if err := s.Send(e); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// reach checks that the sandbox is routed.
func (g *fakeGateway) reach(ctx context.Context, call, id string) error {
	if err := g.enter(ctx, call, id); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.configured {
		return sandbox.Errorf(sandbox.CodeUnavailable, "not configured")
	}
	if g.routes[id] == nil {
		return sandbox.Errorf(sandbox.CodeNotFound, "no route to %s", id)
	}
	if held := g.routes[id].Held; held != "" {
		return &sandbox.Error{Code: sandbox.CodeInvalidState, Message: "the sandbox stands still", Cause: held, Remedy: "resume it"}
	}
	return nil
}

func (g *fakeGateway) CreateProcess(ctx context.Context, req *connect.Request[gatewayv1.CreateProcessRequest]) (*connect.Response[gatewayv1.CreateProcessResponse], error) {
	m := req.Msg
	if err := g.reach(ctx, "CreateProcess", m.SandboxId); err != nil {
		return nil, err
	}
	g.mu.Lock()
	r := g.routes[m.SandboxId]
	r.Sessions = append(r.Sessions, &gatewayv1.Session{CommandId: m.CommandId, ProcessId: m.ProcessId})
	g.mu.Unlock()
	return connect.NewResponse(&gatewayv1.CreateProcessResponse{Process: g.guests.create(m)}), nil
}

func (g *fakeGateway) StartProcess(ctx context.Context, req *connect.Request[gatewayv1.StartProcessRequest]) (*connect.Response[gatewayv1.StartProcessResponse], error) {
	if err := g.reach(ctx, "StartProcess", req.Msg.SandboxId); err != nil {
		return nil, err
	}
	p, err := g.guests.start(req.Msg.SandboxId, req.Msg.ProcessId)
	if err != nil {
		return nil, err
	}
	if err := g.enter(ctx, "StartProcess after", req.Msg.SandboxId); err != nil {
		return nil, err
	}
	return connect.NewResponse(&gatewayv1.StartProcessResponse{Process: p}), nil
}

func (g *fakeGateway) GetProcess(ctx context.Context, req *connect.Request[gatewayv1.GetProcessRequest]) (*connect.Response[gatewayv1.GetProcessResponse], error) {
	if err := g.reach(ctx, "GetProcess", req.Msg.SandboxId); err != nil {
		return nil, err
	}
	p, err := g.guests.get(req.Msg.SandboxId, req.Msg.ProcessId)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&gatewayv1.GetProcessResponse{Process: p}), nil
}

func (g *fakeGateway) SignalProcess(ctx context.Context, req *connect.Request[gatewayv1.SignalProcessRequest]) (*connect.Response[gatewayv1.SignalProcessResponse], error) {
	if err := g.reach(ctx, "SignalProcess", req.Msg.SandboxId); err != nil {
		return nil, err
	}
	p, err := g.guests.finish(req.Msg.SandboxId, req.Msg.ProcessId, -1, req.Msg.Signal)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&gatewayv1.SignalProcessResponse{Process: p}), nil
}

func (g *fakeGateway) WriteStdin(ctx context.Context, req *connect.Request[gatewayv1.WriteStdinRequest]) (*connect.Response[gatewayv1.WriteStdinResponse], error) {
	if err := g.reach(ctx, "WriteStdin", req.Msg.SandboxId); err != nil {
		return nil, err
	}
	n, err := g.guests.write(req.Msg)
	if err != nil {
		return nil, err
	}
	if err := g.enter(ctx, "WriteStdin after", req.Msg.SandboxId); err != nil {
		return nil, err
	}
	return connect.NewResponse(&gatewayv1.WriteStdinResponse{StdinBytes: n}), nil
}

func (g *fakeGateway) ResizeProcess(ctx context.Context, req *connect.Request[gatewayv1.ResizeProcessRequest]) (*connect.Response[gatewayv1.ResizeProcessResponse], error) {
	m := req.Msg
	if err := g.reach(ctx, "ResizeProcess", m.SandboxId); err != nil {
		return nil, err
	}
	g.guests.mu.Lock()
	defer g.guests.mu.Unlock()
	f, err := g.guests.find(m.SandboxId, m.ProcessId)
	if err != nil {
		return nil, err
	}
	f.spec.Pty = m.Size
	return connect.NewResponse(&gatewayv1.ResizeProcessResponse{Process: proto.CloneOf(f.p)}), nil
}

func (g *fakeGateway) ReadOutput(ctx context.Context, req *connect.Request[gatewayv1.ReadOutputRequest]) (*connect.Response[gatewayv1.ReadOutputResponse], error) {
	if err := g.reach(ctx, "ReadOutput", req.Msg.SandboxId); err != nil {
		return nil, err
	}
	return connect.NewResponse(g.guests.read(req.Msg)), nil
}

func (g *fakeGateway) AckProcesses(ctx context.Context, req *connect.Request[gatewayv1.AckProcessesRequest]) (*connect.Response[gatewayv1.AckProcessesResponse], error) {
	if err := g.reach(ctx, "AckProcesses", req.Msg.SandboxId); err != nil {
		return nil, err
	}
	g.guests.mu.Lock()
	defer g.guests.mu.Unlock()
	g.guests.acked = append(g.guests.acked, req.Msg.ProcessIds...)
	for _, id := range req.Msg.ProcessIds {
		f := g.guests.processes[g.guests.key(req.Msg.SandboxId, id)]
		if f != nil && f.p.State == agentv1.ProcessState_PROCESS_STATE_CREATED { // given up
			f.p.State, f.p.EndedAt = agentv1.ProcessState_PROCESS_STATE_FAILED, timestamppb.Now()
			f.p.ErrorCode, f.p.ErrorMessage = "canceled", "given up"
			if req.Msg.Expired {
				f.p.ErrorCode = "expired"
			}
			g.guests.tell(f)
		}
	}
	return connect.NewResponse(&gatewayv1.AckProcessesResponse{}), nil
}

// raw answers /raw/: it notes the request and echoes a body; the path "missing" does not exist.
func (g *fakeGateway) raw(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	g.requests = append(g.requests, r)
	g.mu.Unlock()
	if strings.Contains(r.URL.Query().Get("path"), "missing") {
		problem.Write(w, sandbox.Errorf(sandbox.CodeNotFound, "no such file"), problem.Options{})
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("X-Internal", "secret")
	_, _ = io.Copy(w, r.Body)
}

func (g *fakeGuests) key(box, process string) string { return box + "/" + process }

// tell sends a process to every watcher; g.mu is held.
func (g *fakeGuests) tell(f *fakeProcess) *agentv1.Process {
	p := proto.CloneOf(f.p)
	for w := range g.watchers {
		w <- &gatewayv1.WatchResponse{Event: &gatewayv1.WatchResponse_Process{
			Process: &gatewayv1.WatchResponse_ProcessChanged{SandboxId: f.box, Process: p}}}
	}
	return proto.CloneOf(p)
}

// resync tells everything about one sandbox, then synced.
func (g *fakeGuests) resync(box string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, f := range g.processes {
		if f.box == box {
			g.tell(f)
		}
	}
	for w := range g.watchers {
		w <- &gatewayv1.WatchResponse{Event: &gatewayv1.WatchResponse_Synced_{Synced: &gatewayv1.WatchResponse_Synced{SandboxId: box}}}
	}
}

func (g *fakeGuests) create(m *gatewayv1.CreateProcessRequest) *agentv1.Process {
	g.mu.Lock()
	defer g.mu.Unlock()
	key := g.key(m.SandboxId, m.ProcessId)
	if g.processes[key] == nil {
		g.processes[key] = &fakeProcess{box: m.SandboxId, spec: m.Spec,
			p: &agentv1.Process{ProcessId: m.ProcessId, State: agentv1.ProcessState_PROCESS_STATE_CREATED}}
	}
	return g.tell(g.processes[key])
}

func (g *fakeGuests) find(box, process string) (*fakeProcess, error) {
	f := g.processes[g.key(box, process)]
	if f == nil {
		return nil, sandbox.Errorf(sandbox.CodeNotFound, "no such process")
	}
	return f, nil
}

func (g *fakeGuests) start(box, process string) (*agentv1.Process, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f, err := g.find(box, process)
	if err != nil {
		return nil, err
	}
	if f.p.State != agentv1.ProcessState_PROCESS_STATE_CREATED {
		return proto.CloneOf(f.p), nil
	}
	g.starts[process]++
	f.p.State, f.p.Pid, f.p.StartedAt = agentv1.ProcessState_PROCESS_STATE_RUNNING, 42, timestamppb.Now()
	switch f.spec.Argv[0] {
	case "missing":
		f.p.State, f.p.Pid, f.p.StartedAt = agentv1.ProcessState_PROCESS_STATE_FAILED, 0, nil
		f.p.ErrorCode, f.p.ErrorMessage, f.p.EndedAt = "command_not_found", "no such file", timestamppb.Now()
	case "true":
		f.stdout = []byte(strings.Join(f.spec.Argv[1:], " "))
		f.p.State, f.p.EndedAt = agentv1.ProcessState_PROCESS_STATE_EXITED, timestamppb.Now()
		f.p.StdoutBytes = uint64(len(f.stdout))
	}
	return g.tell(f), nil
}

func (g *fakeGuests) get(box, process string) (*agentv1.Process, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f, err := g.find(box, process)
	if err != nil {
		return nil, err
	}
	return proto.CloneOf(f.p), nil
}

func (g *fakeGuests) finish(box, process string, code int32, signal string) (*agentv1.Process, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f, err := g.find(box, process)
	if err != nil {
		return nil, err
	}
	if f.p.State != agentv1.ProcessState_PROCESS_STATE_RUNNING {
		return nil, sandbox.Errorf(sandbox.CodeNotRunning, "the process is not running")
	}
	f.p.State, f.p.ExitCode, f.p.Signal = agentv1.ProcessState_PROCESS_STATE_EXITED, code, signal
	f.p.EndedAt, f.p.StdoutBytes = timestamppb.Now(), uint64(len(f.stdout))
	return g.tell(f), nil
}

func (g *fakeGuests) write(m *gatewayv1.WriteStdinRequest) (uint64, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f, err := g.find(m.SandboxId, m.ProcessId)
	if err != nil {
		return 0, err
	}
	if f.p.StdinClosed {
		return 0, sandbox.Errorf(sandbox.CodeStdinClosed, "standard input is closed")
	}
	if m.Offset != nil && *m.Offset != f.p.StdinBytes {
		return 0, sandbox.Errorf(sandbox.CodeStdinOffset, "offset %d is not %d", *m.Offset, f.p.StdinBytes)
	}
	f.stdout = append(f.stdout, m.Data...)
	f.p.StdinBytes += uint64(len(m.Data))
	if m.Eof {
		f.p.StdinClosed = true
		f.p.State, f.p.EndedAt = agentv1.ProcessState_PROCESS_STATE_EXITED, timestamppb.Now()
		f.p.StdoutBytes = uint64(len(f.stdout))
		g.tell(f)
	}
	return f.p.StdinBytes, nil
}

func (g *fakeGuests) read(m *gatewayv1.ReadOutputRequest) *gatewayv1.ReadOutputResponse {
	g.mu.Lock()
	defer g.mu.Unlock()
	f, err := g.find(m.SandboxId, m.ProcessId)
	if err != nil || m.Stream != agentv1.OutputStream_OUTPUT_STREAM_STDOUT || m.Offset >= uint64(len(f.stdout)) {
		return &gatewayv1.ReadOutputResponse{Offset: m.Offset}
	}
	end := min(uint64(len(f.stdout)), m.Offset+uint64(m.MaxBytes))
	return &gatewayv1.ReadOutputResponse{Offset: m.Offset, Data: f.stdout[m.Offset:end], More: end < uint64(len(f.stdout))}
}

// forget loses a process, as an agent that started anew would.
func (g *fakeGuests) forget(box, process string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.processes, g.key(box, process))
}

func (g *fakeGuests) started(process string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.starts[process]
}

func (g *fakeGuests) isAcked(process string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Contains(g.acked, process)
}

func (g *fakeGuests) spec(box, process string) *agentv1.ProcessSpec {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.processes[g.key(box, process)].spec
}
