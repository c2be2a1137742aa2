package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"unicode"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	gatewayv1 "github.com/space-sandbox/space/api/proto/gateway/v1"
	"github.com/space-sandbox/space/internal/failpoint"
	"github.com/space-sandbox/space/internal/guest"
	"github.com/space-sandbox/space/internal/ingress"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/telemetry"
)

// entropyBytes is what a guest gets for its kernel's pool at the start of each generation.
const entropyBytes = 64

// service is the Connect side of a Gateway. Errors are *sandbox.Error; rpc.Errors maps them.
type service struct{ g *Gateway }

// Configure implements GatewayService.
func (s *service) Configure(_ context.Context, req *connect.Request[gatewayv1.ConfigureRequest]) (*connect.Response[gatewayv1.ConfigureResponse], error) {
	routes := make([]wanted, 0, len(req.Msg.GetRoutes()))
	for _, m := range req.Msg.GetRoutes() {
		w, err := parseRoute(m)
		if err != nil {
			return nil, err
		}
		routes = append(routes, w)
	}
	if err := s.g.configure(req.Msg.GetVerifyKey(), routes); err != nil {
		return nil, err
	}
	failpoint.Hit(failpoint.RoutesReplaced)
	s.g.deps.Logger.Debug("configured", "routes", len(routes))
	return connect.NewResponse(&gatewayv1.ConfigureResponse{}), nil
}

// Publish implements GatewayService.
func (s *service) Publish(_ context.Context, req *connect.Request[gatewayv1.PublishRequest]) (*connect.Response[gatewayv1.PublishResponse], error) {
	w, err := parseRoute(req.Msg.GetRoute())
	if err != nil {
		return nil, err
	}
	if err := s.g.publish(w); err != nil {
		return nil, err
	}
	failpoint.Hit(failpoint.RoutePut)
	return connect.NewResponse(&gatewayv1.PublishResponse{}), nil
}

// Unpublish implements GatewayService.
func (s *service) Unpublish(_ context.Context, req *connect.Request[gatewayv1.UnpublishRequest]) (*connect.Response[gatewayv1.UnpublishResponse], error) {
	id, err := sandbox.ParseID(req.Msg.GetSandboxId())
	if err != nil {
		return nil, err
	}
	s.g.unpublish(id, req.Msg.GetReason())
	failpoint.Hit(failpoint.RouteTaken)
	return connect.NewResponse(&gatewayv1.UnpublishResponse{}), nil
}

// AwaitReady implements GatewayService. It looks at no route: its client is its own, also when there is one, and thrown
// away after it; what is published later connects anew.
func (s *service) AwaitReady(ctx context.Context, req *connect.Request[gatewayv1.AwaitReadyRequest]) (*connect.Response[gatewayv1.AwaitReadyResponse], error) {
	m := req.Msg
	w, err := parseRoute(&gatewayv1.Route{SandboxId: m.GetSandboxId(), Generation: m.GetGeneration(), AgentToken: m.GetAgentToken()})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.g.ctx, func() { cancel(closing()) })()
	c := guest.NewClient(guest.Config{Token: w.token, Trace: telemetry.Inject, Dial: func(ctx context.Context) (net.Conn, error) {
		return s.g.deps.DialAgent(ctx, w.id)
	}})
	defer c.Close()
	hello, err := c.AwaitHello(ctx)
	if err == nil {
		seed := make([]byte, entropyBytes)
		rand.Read(seed) // never fails (crypto/rand)
		err = c.Init(ctx, &agentv1.InitRequest{Generation: w.generation, Hostname: m.GetHostname(),
			WallTime: timestamppb.New(s.g.deps.Now()), Entropy: seed})
	}
	if err != nil {
		if s.g.ctx.Err() != nil {
			return nil, closing()
		}
		return nil, presentable(err)
	}
	failpoint.Hit(failpoint.GuestGreeted)
	s.g.deps.Logger.InfoContext(ctx, "a guest is ready", "sandbox_id", w.id)
	return connect.NewResponse(&gatewayv1.AwaitReadyResponse{AgentVersion: hello.GetVersion(), Stages: hello.GetStages()}), nil
}

// CreateProcess implements GatewayService.
func (s *service) CreateProcess(ctx context.Context, req *connect.Request[gatewayv1.CreateProcessRequest]) (*connect.Response[gatewayv1.CreateProcessResponse], error) {
	command, err := sandbox.ParseCommandID(req.Msg.GetCommandId())
	if err != nil {
		return nil, err
	}
	rt, process, err := s.target(req.Msg)
	if err != nil {
		return nil, err
	}
	// Before the agent hears of it, so that nothing the agent says about it is taken for an invention.
	added, err := rt.addSession(command, process)
	if err != nil {
		return nil, err
	}
	p, err := rt.guest.CreateProcess(ctx, process, req.Msg.GetSpec())
	if err != nil {
		if code := sandbox.CodeOf(err); added && !code.Info().Retryable && code != sandbox.CodeCanceled {
			rt.dropSession(command, process)
		}
		return nil, s.over(rt, err)
	}
	return connect.NewResponse(&gatewayv1.CreateProcessResponse{Process: p}), nil
}

// StartProcess implements GatewayService.
func (s *service) StartProcess(ctx context.Context, req *connect.Request[gatewayv1.StartProcessRequest]) (*connect.Response[gatewayv1.StartProcessResponse], error) {
	rt, process, err := s.target(req.Msg)
	if err != nil {
		return nil, err
	}
	p, err := rt.guest.StartProcess(ctx, process)
	if err != nil {
		return nil, s.over(rt, err)
	}
	return connect.NewResponse(&gatewayv1.StartProcessResponse{Process: p}), nil
}

// GetProcess implements GatewayService.
func (s *service) GetProcess(ctx context.Context, req *connect.Request[gatewayv1.GetProcessRequest]) (*connect.Response[gatewayv1.GetProcessResponse], error) {
	rt, process, err := s.target(req.Msg)
	if err != nil {
		return nil, err
	}
	p, err := rt.guest.GetProcess(ctx, process)
	if err != nil {
		return nil, s.over(rt, err)
	}
	return connect.NewResponse(&gatewayv1.GetProcessResponse{Process: p}), nil
}

// SignalProcess implements GatewayService.
func (s *service) SignalProcess(ctx context.Context, req *connect.Request[gatewayv1.SignalProcessRequest]) (*connect.Response[gatewayv1.SignalProcessResponse], error) {
	rt, process, err := s.target(req.Msg)
	if err != nil {
		return nil, err
	}
	p, err := rt.guest.SignalProcess(ctx, process, req.Msg.GetSignal())
	if err != nil {
		return nil, s.over(rt, err)
	}
	return connect.NewResponse(&gatewayv1.SignalProcessResponse{Process: p}), nil
}

// ResizeProcess implements GatewayService.
func (s *service) ResizeProcess(ctx context.Context, req *connect.Request[gatewayv1.ResizeProcessRequest]) (*connect.Response[gatewayv1.ResizeProcessResponse], error) {
	rt, process, err := s.target(req.Msg)
	if err != nil {
		return nil, err
	}
	p, err := rt.guest.ResizeProcess(ctx, process, req.Msg.GetSize())
	if err != nil {
		return nil, s.over(rt, err)
	}
	return connect.NewResponse(&gatewayv1.ResizeProcessResponse{Process: p}), nil
}

// WriteStdin implements GatewayService.
func (s *service) WriteStdin(ctx context.Context, req *connect.Request[gatewayv1.WriteStdinRequest]) (*connect.Response[gatewayv1.WriteStdinResponse], error) {
	rt, process, err := s.target(req.Msg)
	if err != nil {
		return nil, err
	}
	n, err := rt.guest.WriteStdin(ctx, &agentv1.WriteStdinRequest{ProcessId: string(process), Data: req.Msg.GetData(),
		Eof: req.Msg.GetEof(), Offset: req.Msg.Offset})
	if err != nil {
		return nil, s.over(rt, err)
	}
	return connect.NewResponse(&gatewayv1.WriteStdinResponse{StdinBytes: n}), nil
}

// AckProcesses implements GatewayService.
func (s *service) AckProcesses(ctx context.Context, req *connect.Request[gatewayv1.AckProcessesRequest]) (*connect.Response[gatewayv1.AckProcessesResponse], error) {
	rt, err := s.g.lookup(req.Msg.GetSandboxId())
	if err != nil {
		return nil, err
	}
	ids := make([]sandbox.ProcessID, 0, len(req.Msg.GetProcessIds()))
	for _, text := range req.Msg.GetProcessIds() {
		id, err := sandbox.ParseProcessID(text)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	if err := rt.guest.AckProcesses(ctx, req.Msg.GetExpired(), ids...); err != nil {
		return nil, s.over(rt, err)
	}
	rt.room.drop(ids)
	return connect.NewResponse(&gatewayv1.AckProcessesResponse{}), nil
}

// aimed is a request about one process.
type aimed interface {
	GetSandboxId() string
	GetProcessId() string
}

func (s *service) target(m aimed) (reached, sandbox.ProcessID, error) {
	rt, err := s.g.lookup(m.GetSandboxId())
	if err != nil {
		return reached{}, "", err
	}
	process, err := sandbox.ParseProcessID(m.GetProcessId())
	return rt, process, err
}

// over says what a failed call means when its route has ended, or its machine was held, meanwhile.
func (s *service) over(rt reached, err error) error {
	if rt.life.Err() == nil {
		return presentable(err)
	}
	if s.g.ctx.Err() != nil {
		return closing()
	}
	if p, ok := errors.AsType[*ingress.PausedError](context.Cause(rt.life)); ok {
		e := p.Refusal()
		e.Message, e.Err = "the sandbox was paused during the call", err
		return e
	}
	return &sandbox.Error{Code: sandbox.CodeNotFound, Message: "the sandbox is not reachable any more",
		Cause: context.Cause(rt.life).Error(), Err: err}
}

// presentable keeps an error as it is, but for what it wraps: that may hold text of the guest's, and only its beginning
// goes further.
func presentable(err error) error {
	e := *sandbox.AsError(err)
	if e.Err != nil && e.Cause == "" {
		e.Cause = cleanCause(e.Err.Error())
	}
	return &e
}

const maxCause = 300 // bytes

// cleanCause keeps the printable beginning of a text.
func cleanCause(text string) string {
	text = strings.ToValidUTF8(text[:min(len(text), maxCause)], "")
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return -1
	}, text)
}

// acceptedStdin finds in an error how many bytes of standard input the agent has taken so far, if it says so.
func acceptedStdin(err error) *uint64 {
	for _, f := range sandbox.AsError(err).Fields {
		if n, perr := strconv.ParseUint(f.Message, 10, 63); f.Field == "stdin_bytes" && perr == nil {
			return &n
		}
	}
	return nil
}

func badParameter(name, message string) error {
	return &sandbox.Error{Code: sandbox.CodeInvalidArgument, Message: fmt.Sprintf("the parameter %s %s", name, message),
		Fields: []sandbox.FieldError{{Field: name, Message: message}}}
}
