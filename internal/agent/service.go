package agent

import (
	"context"
	"fmt"
	"regexp"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

// maxRequestBytes bounds one message to the agent: a process specification with a full environment, or one write to
// standard input.
const maxRequestBytes = 4 << 20

// maxAcks bounds one AckProcesses call.
const maxAcks = 8192

// service is the Connect side of a Server.
type service struct {
	server *Server

	initMu     sync.Mutex // also of the clock
	generation int64      // of the last Init that succeeded
}

func (s *service) Hello(context.Context, *connect.Request[agentv1.HelloRequest]) (*connect.Response[agentv1.HelloResponse], error) {
	res := &agentv1.HelloResponse{Version: s.server.cfg.Version, BootId: s.server.bootID}
	for _, st := range s.server.cfg.Stages {
		res.Stages = append(res.Stages, &agentv1.Stage{Name: st.Name, Ms: float64(st.Took.Microseconds()) / 1000})
	}
	return connect.NewResponse(res), nil
}

func (s *service) Init(ctx context.Context, req *connect.Request[agentv1.InitRequest]) (*connect.Response[agentv1.InitResponse], error) {
	m := req.Msg
	if err := checkInit(m); err != nil {
		return nil, err
	}
	s.initMu.Lock()
	defer s.initMu.Unlock()
	if m.Generation < s.generation {
		return nil, &sandbox.Error{Code: sandbox.CodeInvalidState, Message: "the machine has a later identity",
			Cause: fmt.Sprintf("it is of generation %d, the call of %d", s.generation, m.Generation)}
	}
	machine := s.server.cfg.Machine
	if m.Generation > s.generation { // else it goes on after a pause; a name that was changed inside stays
		if err := machine.SetHostname(m.Hostname); err != nil {
			return nil, fmt.Errorf("set the host name: %w", err)
		}
	}
	if err := machine.SetClock(m.WallTime.AsTime()); err != nil {
		return nil, fmt.Errorf("set the clock: %w", err)
	}
	if err := machine.AddEntropy(m.Entropy); err != nil {
		return nil, fmt.Errorf("add entropy: %w", err)
	}
	s.generation = m.Generation
	s.server.cfg.Logger.InfoContext(ctx, "the machine has its identity", "hostname", m.Hostname, "generation", m.Generation)
	return connect.NewResponse(&agentv1.InitResponse{}), nil
}

func (s *service) AdjustClock(_ context.Context, req *connect.Request[agentv1.AdjustClockRequest]) (*connect.Response[agentv1.AdjustClockResponse], error) {
	by := req.Msg.GetBy()
	if by != nil && by.CheckValid() != nil {
		return nil, badField("by", "is not a duration")
	}
	s.initMu.Lock()
	defer s.initMu.Unlock()
	if d := by.AsDuration(); d != 0 {
		if err := s.server.cfg.Machine.AdjustClock(d); err != nil {
			return nil, fmt.Errorf("adjust the clock: %w", err)
		}
	}
	return connect.NewResponse(&agentv1.AdjustClockResponse{WallTime: timestamppb.New(s.server.cfg.Machine.Now())}), nil
}

var hostnamePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

func checkInit(m *agentv1.InitRequest) error {
	if m.Generation < 1 {
		return badField("generation", "must be at least 1")
	}
	if !hostnamePattern.MatchString(m.Hostname) {
		return badField("hostname", "must be a label of at most 63 lower-case letters, digits and hyphens")
	}
	if m.WallTime.CheckValid() != nil || m.WallTime.AsTime().Before(time.Unix(0, 0)) {
		return badField("wall_time", "must be a time after 1970")
	}
	if n := len(m.Entropy); n < 32 || n > 512 {
		return badField("entropy", "must be 32 to 512 bytes")
	}
	return nil
}

func (s *service) CreateProcess(_ context.Context, req *connect.Request[agentv1.CreateProcessRequest]) (*connect.Response[agentv1.CreateProcessResponse], error) {
	id, err := sandbox.ParseProcessID(req.Msg.ProcessId)
	if err != nil {
		return nil, err
	}
	p, err := s.server.table.create(id, req.Msg.Spec)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&agentv1.CreateProcessResponse{Process: p.snapshot()}), nil
}

func (s *service) StartProcess(_ context.Context, req *connect.Request[agentv1.StartProcessRequest]) (*connect.Response[agentv1.StartProcessResponse], error) {
	p, err := s.server.table.get(req.Msg.ProcessId)
	if err != nil {
		return nil, err
	}
	s.server.table.start(p)
	return connect.NewResponse(&agentv1.StartProcessResponse{Process: p.snapshot()}), nil
}

func (s *service) GetProcess(_ context.Context, req *connect.Request[agentv1.GetProcessRequest]) (*connect.Response[agentv1.GetProcessResponse], error) {
	p, err := s.server.table.get(req.Msg.ProcessId)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&agentv1.GetProcessResponse{Process: p.snapshot()}), nil
}

func (s *service) WriteStdin(ctx context.Context, req *connect.Request[agentv1.WriteStdinRequest]) (*connect.Response[agentv1.WriteStdinResponse], error) {
	p, err := s.server.table.get(req.Msg.ProcessId)
	if err != nil {
		return nil, err
	}
	ctx, cancel := s.server.bind(ctx)
	defer cancel()
	n, err := p.stdin.write(ctx, req.Msg.Data, req.Msg.Eof, req.Msg.Offset)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&agentv1.WriteStdinResponse{StdinBytes: n}), nil
}

func (s *service) SignalProcess(_ context.Context, req *connect.Request[agentv1.SignalProcessRequest]) (*connect.Response[agentv1.SignalProcessResponse], error) {
	sig, err := parseSignal(req.Msg.Signal)
	if err != nil {
		return nil, err
	}
	p, err := s.server.table.get(req.Msg.ProcessId)
	if err != nil {
		return nil, err
	}
	if err := p.signal(sig); err != nil {
		return nil, err
	}
	return connect.NewResponse(&agentv1.SignalProcessResponse{Process: p.snapshot()}), nil
}

func (s *service) ResizeProcess(_ context.Context, req *connect.Request[agentv1.ResizeProcessRequest]) (*connect.Response[agentv1.ResizeProcessResponse], error) {
	p, err := s.server.table.get(req.Msg.ProcessId)
	if err != nil {
		return nil, err
	}
	if err := p.resize(req.Msg.Size); err != nil {
		return nil, err
	}
	return connect.NewResponse(&agentv1.ResizeProcessResponse{Process: p.snapshot()}), nil
}

// AckProcesses ignores ids that are unknown or forgotten already, and processes that run. One that was never started
// is given up: it has failed, and can be forgotten like the others.
func (s *service) AckProcesses(_ context.Context, req *connect.Request[agentv1.AckProcessesRequest]) (*connect.Response[agentv1.AckProcessesResponse], error) {
	if len(req.Msg.ProcessIds) > maxAcks {
		return nil, badField("process_ids", fmt.Sprintf("has more than %d entries", maxAcks))
	}
	why := errGivenUp
	if req.Msg.Expired {
		why = errExpired
	}
	for _, id := range req.Msg.ProcessIds {
		p, err := s.server.table.get(id)
		switch sandbox.CodeOf(err) {
		case "":
			s.server.table.ack(p, why)
		case sandbox.CodeNotFound:
		default:
			return nil, err
		}
	}
	return connect.NewResponse(&agentv1.AckProcessesResponse{}), nil
}

// Shutdown only notes the wish: the handler acts on it once the answer is out.
func (s *service) Shutdown(ctx context.Context, _ *connect.Request[agentv1.ShutdownRequest]) (*connect.Response[agentv1.ShutdownResponse], error) {
	s.server.cfg.Logger.InfoContext(ctx, "the machine is to end")
	s.server.powerOff.Store(true)
	return connect.NewResponse(&agentv1.ShutdownResponse{}), nil
}
