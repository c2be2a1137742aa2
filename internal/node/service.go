package node

import (
	"context"
	"encoding/hex"
	"fmt"
	"net/http"
	"regexp"
	"time"

	"connectrpc.com/connect"

	nodev1 "github.com/space-sandbox/space/api/proto/node/v1"
	"github.com/space-sandbox/space/api/proto/node/v1/nodev1connect"
	"github.com/space-sandbox/space/internal/rpc"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/telemetry"
)

const maxRequestBytes = 64 << 10

// Handler serves NodeService. Who may connect is decided by the socket.
func (n *Node) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle(nodev1connect.NewNodeServiceHandler(service{n: n}, connect.WithInterceptors(n.metrics.calls, rpc.Errors()),
		connect.WithReadMaxBytes(maxRequestBytes)))
	mux.Handle("GET "+telemetry.MetricsPath, telemetry.Handler(n.metrics.registry))
	return mux
}

// service is NodeService over a Node.
type service struct {
	n *Node
}

var _ nodev1connect.NodeServiceHandler = service{}

func (s service) EnsureMachine(ctx context.Context, req *connect.Request[nodev1.EnsureMachineRequest]) (*connect.Response[nodev1.EnsureMachineResponse], error) {
	spec, err := s.n.checkSpec(req.Msg)
	if err != nil {
		return nil, err
	}
	machine, stages, err := s.n.ensure(ctx, spec)
	if err != nil {
		return nil, err
	}
	for _, st := range stages {
		s.n.metrics.steps.WithLabelValues(st.name).Observe(st.took.Seconds())
	}
	s.n.deps.Logger.InfoContext(ctx, "a machine runs", "sandbox_id", spec.id, "generation", spec.generation)
	return connect.NewResponse(&nodev1.EnsureMachineResponse{Machine: machine, Stages: stagesProto(stages)}), nil
}

func (s service) DeleteMachine(ctx context.Context, req *connect.Request[nodev1.DeleteMachineRequest]) (*connect.Response[nodev1.DeleteMachineResponse], error) {
	id, err := sandbox.ParseID(req.Msg.SandboxId)
	if err != nil {
		return nil, err
	}
	if generation := req.Msg.EndGeneration; generation != 0 {
		if err := s.n.end(ctx, id, generation); err != nil {
			return nil, err
		}
		s.n.deps.Logger.InfoContext(ctx, "a machine was ended; its disk is kept", "sandbox_id", id, "generation", generation)
		return connect.NewResponse(&nodev1.DeleteMachineResponse{}), nil
	}
	began := time.Now()
	if err := s.n.remove(ctx, id); err != nil {
		return nil, err
	}
	s.n.metrics.steps.WithLabelValues("remove").Observe(time.Since(began).Seconds())
	s.n.deps.Logger.InfoContext(ctx, "a machine is gone", "sandbox_id", id)
	return connect.NewResponse(&nodev1.DeleteMachineResponse{}), nil
}

func (s service) ListMachines(context.Context, *connect.Request[nodev1.ListMachinesRequest]) (*connect.Response[nodev1.ListMachinesResponse], error) {
	return connect.NewResponse(&nodev1.ListMachinesResponse{Machines: s.n.hub.snapshot()}), nil
}

func (s service) WatchMachines(ctx context.Context, _ *connect.Request[nodev1.WatchMachinesRequest], stream *connect.ServerStream[nodev1.WatchMachinesResponse]) error {
	sub := s.n.hub.subscribe()
	defer sub.close()
	if err := sendChanges(stream, sub); err != nil {
		return err
	}
	if err := stream.Send(&nodev1.WatchMachinesResponse{Event: &nodev1.WatchMachinesResponse_Synced{Synced: true}}); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.n.life.Done():
			return &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "node is stopping"}
		case <-sub.wake:
		}
		if err := sendChanges(stream, sub); err != nil {
			return err
		}
	}
}

func sendChanges(stream *connect.ServerStream[nodev1.WatchMachinesResponse], sub *subscription) error {
	for id, m := range sub.take() {
		ev := &nodev1.WatchMachinesResponse{Event: &nodev1.WatchMachinesResponse_DeletedSandboxId{DeletedSandboxId: string(id)}}
		if m != nil {
			ev.Event = &nodev1.WatchMachinesResponse_Machine{Machine: m}
		}
		if err := stream.Send(ev); err != nil {
			return err
		}
	}
	return nil
}

var digestPattern = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// checkSpec turns a request into bounded, typed values; node trusts nothing else of it.
func (n *Node) checkSpec(m *nodev1.EnsureMachineRequest) (machineSpec, error) {
	bad := func(field, format string, args ...any) (machineSpec, error) {
		return machineSpec{}, &sandbox.Error{Code: sandbox.CodeInvalidArgument, Message: "node refused the machine",
			Cause: field + ": " + fmt.Sprintf(format, args...)}
	}
	id, err := sandbox.ParseID(m.SandboxId)
	if err != nil {
		return machineSpec{}, err
	}
	if !digestPattern.MatchString(m.TemplateDigest) {
		return bad("template_digest", "not a digest")
	}
	if m.Vcpus < sandbox.MinVCPUs || m.Vcpus > sandbox.MaxVCPUs {
		return bad("vcpus", "%d is not in %d..%d", m.Vcpus, sandbox.MinVCPUs, sandbox.MaxVCPUs)
	}
	if m.MemoryMib < sandbox.MinMemoryMiB || m.MemoryMib > sandbox.MaxMemoryMiB {
		return bad("memory_mib", "%d is not in %d..%d", m.MemoryMib, sandbox.MinMemoryMiB, sandbox.MaxMemoryMiB)
	}
	if m.DiskMib < sandbox.MinDiskMiB || m.DiskMib > sandbox.MaxDiskMiB {
		return bad("disk_mib", "%d is not in %d..%d", m.DiskMib, sandbox.MinDiskMiB, sandbox.MaxDiskMiB)
	}
	if raw, err := hex.DecodeString(m.AgentToken); err != nil || len(raw) != 32 {
		return bad("agent_token", "not 64 hex digits")
	}
	name := m.Driver
	if name == "" {
		name = n.deps.DefaultDriver
	}
	b, ok := backend(n.deps.Backends, name)
	if probe := n.deps.Probes[name]; !ok || !probe.Available {
		return machineSpec{}, &sandbox.Error{Code: sandbox.CodeDriverUnavailable, Message: fmt.Sprintf("driver %q does not work here", name),
			Cause: probe.Reason, Remedy: "leave out driver, or see space doctor"}
	}
	return machineSpec{id: id, generation: m.Generation, templateDigest: m.TemplateDigest, backend: b, vcpus: int(m.Vcpus),
		memoryMiB: int(m.MemoryMib), diskMiB: int(m.DiskMib), agentToken: m.AgentToken, keepDisk: m.KeepDisk}, nil
}
