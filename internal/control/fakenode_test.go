package control_test

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	nodev1 "github.com/space-sandbox/space/api/proto/node/v1"
	"github.com/space-sandbox/space/api/proto/node/v1/nodev1connect"
	"github.com/space-sandbox/space/internal/sandbox"
)

const (
	miniDigest = "sha256:1111111111111111111111111111111111111111111111111111111111111111"
	baseDigest = "sha256:2222222222222222222222222222222222222222222222222222222222222222"
)

// fakeNode is a node whose machines are entries of a map.
type fakeNode struct {
	nodev1connect.UnimplementedNodeServiceHandler
	hook

	mu        sync.Mutex
	machines  map[string]*nodev1.Machine
	templates []*nodev1.Template
	ensured   map[string]int                 // EnsureMachine calls by sandbox
	acts      map[string]int                 // times that a machine was really paused, resumed or booted, by "verb id"
	wishes    map[string]nodev1.MachineState // what node has been told to make of a machine
	full      bool                           // the pool: nothing may run
	watchers  map[chan *nodev1.WatchMachinesResponse]struct{}

	free   atomic.Uint64 // bytes of the pool
	places atomic.Uint32 // 0: no limit
}

func newFakeNode() *fakeNode {
	n := &fakeNode{machines: map[string]*nodev1.Machine{}, ensured: map[string]int{},
		acts: map[string]int{}, wishes: map[string]nodev1.MachineState{},
		watchers: map[chan *nodev1.WatchMachinesResponse]struct{}{},
		templates: []*nodev1.Template{
			{Digest: miniDigest, Names: []string{"mini:latest"}, CreatedAt: timestamppb.Now(), MinDiskMib: 64},
			{Digest: baseDigest, Names: []string{"base:latest", "base:1"}, CreatedAt: timestamppb.Now(), MinDiskMib: 1024,
				Env: map[string]string{"LANG": "C.UTF-8", "A": "template"}, User: "user", Workdir: "/srv"},
		}}
	n.free.Store(1 << 39)
	return n
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

func (n *fakeNode) GetNode(ctx context.Context, _ *connect.Request[nodev1.GetNodeRequest]) (*connect.Response[nodev1.GetNodeResponse], error) {
	if err := n.enter(ctx, "GetNode", ""); err != nil {
		return nil, err
	}
	return connect.NewResponse(&nodev1.GetNodeResponse{InstanceId: "i", InstallationId: "abcdef", DefaultDriver: "qemu",
		Cpus: 2, MemoryBytes: 8192 << 20, MemoryAvailableBytes: 4096 << 20, Kernel: "6.1", Pool: &nodev1.Pool{Kind: "copy", TotalBytes: 1 << 40, FreeBytes: n.free.Load(), ReserveBytes: 1 << 30}, MaxMachines: n.places.Load(),
		Drivers: []*nodev1.Driver{{Name: "qemu", Available: true, Isolation: "microvm/emulated"},
			{Name: "firecracker", Reason: "no KVM"}, {Name: "fake", Available: true, Isolation: "none"}}}), nil
}

func (n *fakeNode) ListTemplates(ctx context.Context, _ *connect.Request[nodev1.ListTemplatesRequest]) (*connect.Response[nodev1.ListTemplatesResponse], error) {
	if err := n.enter(ctx, "ListTemplates", ""); err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return connect.NewResponse(&nodev1.ListTemplatesResponse{Templates: slices.Clone(n.templates)}), nil
}

func (n *fakeNode) EnsureMachine(ctx context.Context, req *connect.Request[nodev1.EnsureMachineRequest]) (*connect.Response[nodev1.EnsureMachineResponse], error) {
	id := req.Msg.SandboxId
	n.mu.Lock()
	n.ensured[id]++
	n.mu.Unlock()
	if err := n.enter(ctx, "EnsureMachine", id); err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	m := n.machines[id]
	if m != nil && m.Generation < req.Msg.Generation && req.Msg.KeepDisk {
		if m.State != nodev1.MachineState_MACHINE_STATE_EXITED {
			return nil, sandbox.Errorf(sandbox.CodeInternal, "a machine of an older generation runs")
		}
		m = nil
	} else if m == nil && req.Msg.KeepDisk {
		return nil, sandbox.Errorf(sandbox.CodeNotFound, "there is no disk to keep")
	}
	if m == nil {
		n.acts["boot "+id]++
		n.wishes[id] = nodev1.MachineState_MACHINE_STATE_RUNNING
		m = &nodev1.Machine{SandboxId: id, Generation: req.Msg.Generation, State: nodev1.MachineState_MACHINE_STATE_RUNNING,
			Driver: req.Msg.Driver, Isolation: "microvm/emulated"}
		n.machines[id] = m
		n.tell(machineEvent(m))
	}
	return connect.NewResponse(&nodev1.EnsureMachineResponse{Machine: m,
		Stages: []*nodev1.Stage{{Name: "disk", Ms: 1}, {Name: "boot", Ms: 2}}}), nil
}

func (n *fakeNode) PauseMachine(ctx context.Context, req *connect.Request[nodev1.PauseMachineRequest]) (*connect.Response[nodev1.PauseMachineResponse], error) {
	m, err := n.move(ctx, "PauseMachine", req.Msg.SandboxId, req.Msg.Generation, nodev1.MachineState_MACHINE_STATE_PAUSED)
	return connect.NewResponse(&nodev1.PauseMachineResponse{Machine: m}), err
}

func (n *fakeNode) ResumeMachine(ctx context.Context, req *connect.Request[nodev1.ResumeMachineRequest]) (*connect.Response[nodev1.ResumeMachineResponse], error) {
	m, err := n.move(ctx, "ResumeMachine", req.Msg.SandboxId, req.Msg.Generation, nodev1.MachineState_MACHINE_STATE_RUNNING)
	return connect.NewResponse(&nodev1.ResumeMachineResponse{Machine: m}), err
}

// move writes down what is wanted, then does it, as node promises.
func (n *fakeNode) move(ctx context.Context, call, id string, generation int64, to nodev1.MachineState) (*nodev1.Machine, error) {
	if err := n.enter(ctx, call, id); err != nil {
		return nil, err
	}
	n.mu.Lock()
	m := n.machines[id]
	if m == nil || m.Generation != generation {
		n.mu.Unlock()
		return nil, sandbox.Errorf(sandbox.CodeNotFound, "no such machine")
	}
	n.wishes[id] = to
	n.mu.Unlock()
	if err := n.enter(ctx, call+" after", id); err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.obey(id)
}

// obey makes a machine what is wanted, as far as the pool allows; n.mu is held.
func (n *fakeNode) obey(id string) (*nodev1.Machine, error) {
	m, to := n.machines[id], n.wishes[id]
	switch {
	case m == nil:
		return nil, sandbox.Errorf(sandbox.CodeNotFound, "no such machine")
	case m.State == nodev1.MachineState_MACHINE_STATE_EXITED:
		return m, nil
	case to == nodev1.MachineState_MACHINE_STATE_RUNNING && n.full:
		n.become(id, nodev1.MachineState_MACHINE_STATE_PAUSED, sandbox.ReasonPoolFull)
		return n.machines[id], &sandbox.Error{Code: sandbox.CodePoolFull, Message: "the pool is nearly full"}
	}
	n.become(id, to, "")
	return n.machines[id], nil
}

// become changes a machine and tells; n.mu is held.
func (n *fakeNode) become(id string, state nodev1.MachineState, reason string) {
	old := n.machines[id]
	if old.State == state && old.Reason == reason {
		return
	}
	if old.State != state {
		n.acts[state.String()+" "+id]++
	}
	m := proto.CloneOf(old)
	m.State, m.Reason = state, reason
	n.machines[id] = m
	n.tell(machineEvent(m))
}

// setFull fills the pool, or makes room: node holds what runs, and lets it go on.
func (n *fakeNode) setFull(full bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.full = full
	for id := range n.machines {
		_, _ = n.obey(id) // pool_full is what is meant
	}
}

// state is what a machine does, and why.
func (n *fakeNode) state(id string) (nodev1.MachineState, string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.machines[id].GetState(), n.machines[id].GetReason()
}

// did counts how often a machine was really moved.
func (n *fakeNode) did(what, id string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.acts[what+" "+id]
}

// force makes a machine something that nobody has asked for.
func (n *fakeNode) force(id string, state nodev1.MachineState, reason string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.become(id, state, reason)
}

func (n *fakeNode) DeleteMachine(ctx context.Context, req *connect.Request[nodev1.DeleteMachineRequest]) (*connect.Response[nodev1.DeleteMachineResponse], error) {
	if err := n.enter(ctx, "DeleteMachine", req.Msg.SandboxId); err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if generation := req.Msg.EndGeneration; generation != 0 {
		if n.machines[req.Msg.SandboxId].GetGeneration() == generation {
			n.become(req.Msg.SandboxId, nodev1.MachineState_MACHINE_STATE_EXITED, sandbox.ReasonGuestNotReady)
		}
		return connect.NewResponse(&nodev1.DeleteMachineResponse{}), nil
	}
	n.drop(req.Msg.SandboxId)
	return connect.NewResponse(&nodev1.DeleteMachineResponse{}), nil
}

// drop removes a machine and tells; n.mu is held.
func (n *fakeNode) drop(id string) {
	if n.machines[id] != nil {
		delete(n.machines, id)
		n.tell(&nodev1.WatchMachinesResponse{Event: &nodev1.WatchMachinesResponse_DeletedSandboxId{DeletedSandboxId: id}})
	}
}

func (n *fakeNode) ListMachines(ctx context.Context, _ *connect.Request[nodev1.ListMachinesRequest]) (*connect.Response[nodev1.ListMachinesResponse], error) {
	if err := n.enter(ctx, "ListMachines", ""); err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return connect.NewResponse(&nodev1.ListMachinesResponse{Machines: slices.Collect(maps.Values(n.machines))}), nil
}

func (n *fakeNode) WatchMachines(ctx context.Context, _ *connect.Request[nodev1.WatchMachinesRequest], s *connect.ServerStream[nodev1.WatchMachinesResponse]) error {
	events := make(chan *nodev1.WatchMachinesResponse, 4096)
	n.mu.Lock()
	for _, m := range n.machines {
		events <- machineEvent(m)
	}
	events <- &nodev1.WatchMachinesResponse{Event: &nodev1.WatchMachinesResponse_Synced{Synced: true}}
	n.watchers[events] = struct{}{}
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

// exit ends a machine as a crashed VMM would.
func (n *fakeNode) exit(id, reason, detail string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	old := n.machines[id]
	if old == nil {
		return // removed meanwhile
	}
	m := &nodev1.Machine{SandboxId: id, Generation: old.Generation, State: nodev1.MachineState_MACHINE_STATE_EXITED,
		Driver: old.Driver, Isolation: old.Isolation, Reason: reason, Detail: detail}
	n.machines[id] = m
	n.tell(machineEvent(m))
}

func (n *fakeNode) ids() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Sorted(maps.Keys(n.machines))
}

func (n *fakeNode) ensures(id string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ensured[id]
}
