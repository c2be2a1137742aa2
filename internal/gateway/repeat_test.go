package gateway

import (
	"context"
	"net/http"
	"testing"

	"connectrpc.com/connect"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/api/proto/agent/v1/agentv1connect"
	gatewayv1 "github.com/space-sandbox/space/api/proto/gateway/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

// parrot tells the states of two processes again and again, also backwards, and last that the second has failed.
type parrot struct {
	agentv1connect.UnimplementedAgentServiceHandler
	first, last sandbox.ProcessID
}

func (p parrot) WatchProcesses(ctx context.Context, _ *connect.Request[agentv1.WatchProcessesRequest], s *connect.ServerStream[agentv1.WatchProcessesResponse]) error {
	tell := func(id sandbox.ProcessID, state agentv1.ProcessState, written uint64) error {
		out := &agentv1.Process{ProcessId: string(id), State: state, Pid: 7, StdoutBytes: written}
		if state == agentv1.ProcessState_PROCESS_STATE_FAILED {
			out.Pid, out.ErrorCode = 0, "start_failed"
		}
		return s.Send(&agentv1.WatchProcessesResponse{Event: &agentv1.WatchProcessesResponse_Process{Process: out}})
	}
	if err := s.Send(&agentv1.WatchProcessesResponse{Event: &agentv1.WatchProcessesResponse_Synced{Synced: true}}); err != nil {
		return err
	}
	for i := range uint64(300) {
		for _, state := range []agentv1.ProcessState{agentv1.ProcessState_PROCESS_STATE_RUNNING,
			agentv1.ProcessState_PROCESS_STATE_EXITED, agentv1.ProcessState_PROCESS_STATE_CREATED} {
			if err := tell(p.first, state, i); err != nil {
				return err
			}
		}
	}
	if err := tell(p.last, agentv1.ProcessState_PROCESS_STATE_FAILED, 0); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

// Control hears of each step of a process's life once, however often a guest tells it.
func TestRepeatsAreToldOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.newBox()
	p := parrot{first: sandbox.NewProcessID(), last: sandbox.NewProcessID()}
	mux := http.NewServeMux()
	mux.Handle(agentv1connect.NewAgentServiceHandler(p))
	w.serve(b, mux)
	b.route.Sessions = []*gatewayv1.Session{{CommandId: string(sandbox.NewCommandID()), ProcessId: string(p.first)},
		{CommandId: string(sandbox.NewCommandID()), ProcessId: string(p.last)}}
	watch := w.watch()
	w.configure(b)
	told := 0
	for watch.Receive() {
		e := watch.Msg().GetProcess()
		if e.GetProcess().GetProcessId() == string(p.last) {
			break
		}
		if e != nil {
			told++
		}
	}
	if told == 0 || told > 2 {
		t.Errorf("one process that ran and ended was told %d times (%v)", told, watch.Err())
	}
}
