package main

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	gatewayv1 "github.com/space-sandbox/space/api/proto/gateway/v1"
	"github.com/space-sandbox/space/api/proto/gateway/v1/gatewayv1connect"
	nodev1 "github.com/space-sandbox/space/api/proto/node/v1"
	"github.com/space-sandbox/space/api/proto/node/v1/nodev1connect"
)

// template is the one that the fake node has.
const template = "mini"

// visits notes when control called for a sandbox. Safe for concurrent use.
type visits struct {
	mu    sync.Mutex
	times map[string]*visit
}

// visit is when the calls of a create came in; the fakes answer at once.
type visit struct{ ensure, ready, publish time.Time }

func newVisits() *visits { return &visits{times: map[string]*visit{}} }

func (v *visits) note(id string, set func(*visit, time.Time)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.times[id] == nil {
		v.times[id] = &visit{}
	}
	set(v.times[id], time.Now())
}

// take returns and forgets the visit of a sandbox.
func (v *visits) take(id string) visit {
	v.mu.Lock()
	defer v.mu.Unlock()
	defer delete(v.times, id)
	if at := v.times[id]; at != nil {
		return *at
	}
	return visit{}
}

// fakeNode has machines that are entries of a map; it tells of each change, as the real one does.
type fakeNode struct {
	nodev1connect.UnimplementedNodeServiceHandler
	visits *visits

	mu       sync.Mutex
	machines map[string]*nodev1.Machine
	watchers map[chan *nodev1.WatchMachinesResponse]bool
}

func newFakeNode(v *visits) *fakeNode {
	return &fakeNode{visits: v, machines: map[string]*nodev1.Machine{}, watchers: map[chan *nodev1.WatchMachinesResponse]bool{}}
}

// GetNode describes a host that has room for everything: what is measured is not how little fits.
func (n *fakeNode) GetNode(context.Context, *connect.Request[nodev1.GetNodeRequest]) (*connect.Response[nodev1.GetNodeResponse], error) {
	return connect.NewResponse(&nodev1.GetNodeResponse{InstanceId: "i", InstallationId: "bench0", DefaultDriver: "qemu", Cpus: 1 << 20,
		MemoryBytes: 1 << 50, MemoryAvailableBytes: 1 << 50, Kernel: "fake", Pool: &nodev1.Pool{Kind: "copy", TotalBytes: 1 << 60, FreeBytes: 1 << 60},
		Drivers: []*nodev1.Driver{{Name: "qemu", Available: true, Isolation: "microvm/emulated"}}}), nil
}

// ListTemplates has one.
func (n *fakeNode) ListTemplates(context.Context, *connect.Request[nodev1.ListTemplatesRequest]) (*connect.Response[nodev1.ListTemplatesResponse], error) {
	return connect.NewResponse(&nodev1.ListTemplatesResponse{Templates: []*nodev1.Template{{Digest: "sha256:" + strings.Repeat("1", 64),
		Names: []string{template + ":latest"}, CreatedAt: timestamppb.Now(), MinDiskMib: 64}}}), nil
}

// EnsureMachine answers with a machine at once.
func (n *fakeNode) EnsureMachine(_ context.Context, req *connect.Request[nodev1.EnsureMachineRequest]) (*connect.Response[nodev1.EnsureMachineResponse], error) {
	id := req.Msg.SandboxId
	n.visits.note(id, func(v *visit, now time.Time) { v.ensure = now })
	n.mu.Lock()
	defer n.mu.Unlock()
	m := n.machines[id]
	if m == nil {
		m = &nodev1.Machine{SandboxId: id, Generation: req.Msg.Generation, State: nodev1.MachineState_MACHINE_STATE_RUNNING,
			Driver: req.Msg.Driver, Isolation: "microvm/emulated"}
		n.machines[id] = m
		n.tell(machineEvent(m))
	}
	return connect.NewResponse(&nodev1.EnsureMachineResponse{Machine: m}), nil
}

// DeleteMachine removes a machine at once.
func (n *fakeNode) DeleteMachine(_ context.Context, req *connect.Request[nodev1.DeleteMachineRequest]) (*connect.Response[nodev1.DeleteMachineResponse], error) {
	id := req.Msg.SandboxId
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.machines[id] != nil {
		delete(n.machines, id)
		n.tell(&nodev1.WatchMachinesResponse{Event: &nodev1.WatchMachinesResponse_DeletedSandboxId{DeletedSandboxId: id}})
	}
	return connect.NewResponse(&nodev1.DeleteMachineResponse{}), nil
}

// ListMachines has all.
func (n *fakeNode) ListMachines(context.Context, *connect.Request[nodev1.ListMachinesRequest]) (*connect.Response[nodev1.ListMachinesResponse], error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return connect.NewResponse(&nodev1.ListMachinesResponse{Machines: slices.Collect(maps.Values(n.machines))}), nil
}

// WatchMachines sends all, then each change.
func (n *fakeNode) WatchMachines(ctx context.Context, _ *connect.Request[nodev1.WatchMachinesRequest], s *connect.ServerStream[nodev1.WatchMachinesResponse]) error {
	events := make(chan *nodev1.WatchMachinesResponse, 1<<16)
	n.mu.Lock()
	for _, m := range n.machines {
		events <- machineEvent(m)
	}
	events <- &nodev1.WatchMachinesResponse{Event: &nodev1.WatchMachinesResponse_Synced{Synced: true}}
	n.watchers[events] = true
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.watchers, events)
	}()
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

// tell sends an event to every watcher; n.mu is held.
func (n *fakeNode) tell(e *nodev1.WatchMachinesResponse) {
	for w := range n.watchers {
		w <- e
	}
}

func machineEvent(m *nodev1.Machine) *nodev1.WatchMachinesResponse {
	return &nodev1.WatchMachinesResponse{Event: &nodev1.WatchMachinesResponse_Machine{Machine: m}}
}

// fakeGateway has guests that are ready at once.
type fakeGateway struct {
	gatewayv1connect.UnimplementedGatewayServiceHandler
	visits *visits
}

// Watch says hello and then nothing.
func (g *fakeGateway) Watch(ctx context.Context, _ *connect.Request[gatewayv1.WatchRequest], s *connect.ServerStream[gatewayv1.WatchResponse]) error {
	err := s.Send(&gatewayv1.WatchResponse{Event: &gatewayv1.WatchResponse_Hello_{Hello: &gatewayv1.WatchResponse_Hello{InstanceId: "g"}}})
	if err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

// Configure does nothing.
func (g *fakeGateway) Configure(context.Context, *connect.Request[gatewayv1.ConfigureRequest]) (*connect.Response[gatewayv1.ConfigureResponse], error) {
	return connect.NewResponse(&gatewayv1.ConfigureResponse{}), nil
}

// AwaitReady answers at once.
func (g *fakeGateway) AwaitReady(_ context.Context, req *connect.Request[gatewayv1.AwaitReadyRequest]) (*connect.Response[gatewayv1.AwaitReadyResponse], error) {
	g.visits.note(req.Msg.SandboxId, func(v *visit, now time.Time) { v.ready = now })
	return connect.NewResponse(&gatewayv1.AwaitReadyResponse{AgentVersion: "fake"}), nil
}

// Publish notes when it was called.
func (g *fakeGateway) Publish(_ context.Context, req *connect.Request[gatewayv1.PublishRequest]) (*connect.Response[gatewayv1.PublishResponse], error) {
	g.visits.note(req.Msg.GetRoute().GetSandboxId(), func(v *visit, now time.Time) { v.publish = now })
	return connect.NewResponse(&gatewayv1.PublishResponse{}), nil
}

// Unpublish does nothing.
func (g *fakeGateway) Unpublish(context.Context, *connect.Request[gatewayv1.UnpublishRequest]) (*connect.Response[gatewayv1.UnpublishResponse], error) {
	return connect.NewResponse(&gatewayv1.UnpublishResponse{}), nil
}
