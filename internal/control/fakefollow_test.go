package control_test

import (
	"context"
	"slices"

	"connectrpc.com/connect"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	gatewayv1 "github.com/space-sandbox/space/api/proto/gateway/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

// FollowOutput ends with the process, the route or the caller; all output of a fake process is there at its end.
func (g *fakeGateway) FollowOutput(ctx context.Context, req *connect.Request[gatewayv1.FollowOutputRequest], s *connect.ServerStream[agentv1.AttachResponse]) error {
	m := req.Msg
	if err := g.reach(ctx, "FollowOutput", m.SandboxId); err != nil {
		return err
	}
	events := make(chan *gatewayv1.WatchResponse, 4096)
	defer g.guests.subscribe(events)()
	p, err := g.guests.get(m.SandboxId, m.ProcessId)
	if err == nil && m.Start {
		p, err = g.guests.start(m.SandboxId, m.ProcessId)
	}
	if err != nil {
		return err
	}
	if err := g.enter(ctx, "FollowOutput after", m.SandboxId); err != nil {
		return err
	}
	if err := s.Send(&agentv1.AttachResponse{Event: &agentv1.AttachResponse_Started{Started: p}}); err != nil {
		return err
	}
	for !slices.Contains([]agentv1.ProcessState{agentv1.ProcessState_PROCESS_STATE_EXITED, agentv1.ProcessState_PROCESS_STATE_FAILED}, p.State) {
		select {
		case e := <-events:
			if e.GetProcess().GetProcess().GetProcessId() == m.ProcessId {
				p = e.GetProcess().GetProcess()
			}
		case <-g.routeEnd(m.SandboxId):
			return sandbox.Errorf(sandbox.CodeNotFound, "the route has ended")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for _, pos := range m.Positions {
		if pos.Stream != agentv1.OutputStream_OUTPUT_STREAM_STDOUT {
			continue
		}
		offset := pos.Offset
		for piece := range slices.Chunk(g.guests.output(m.SandboxId, m.ProcessId)[offset:], 100_000) {
			if err := s.Send(&agentv1.AttachResponse{Event: &agentv1.AttachResponse_Data_{
				Data: &agentv1.AttachResponse_Data{Stream: pos.Stream, Offset: offset, Data: piece}}}); err != nil {
				return err
			}
			offset += uint64(len(piece))
		}
	}
	if err := g.enter(ctx, "FollowOutput end", m.SandboxId); err != nil {
		return err
	}
	return s.Send(&agentv1.AttachResponse{Event: &agentv1.AttachResponse_Exit{Exit: p}})
}

// routeEnd is closed when a sandbox is unpublished.
func (g *fakeGateway) routeEnd(id string) <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ends[id] == nil {
		g.ends[id] = make(chan struct{})
	}
	return g.ends[id]
}

func (g *fakeGuests) output(box, process string) []byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	f, err := g.find(box, process)
	if err != nil {
		return nil
	}
	return slices.Clone(f.stdout)
}

// subscribe sends events to the channel until the returned function is called.
func (g *fakeGuests) subscribe(events chan *gatewayv1.WatchResponse) (end func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.watchers[events] = struct{}{}
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.watchers, events)
	}
}
