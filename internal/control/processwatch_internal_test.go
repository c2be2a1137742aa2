package control

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"connectrpc.com/connect"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	gatewayv1 "github.com/space-sandbox/space/api/proto/gateway/v1"
	"github.com/space-sandbox/space/api/proto/gateway/v1/gatewayv1connect"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
)

// knowing is a gateway behind which every process has ended well.
type knowing struct {
	gatewayv1connect.GatewayServiceClient
}

func (knowing) GetProcess(_ context.Context, req *connect.Request[gatewayv1.GetProcessRequest]) (*connect.Response[gatewayv1.GetProcessResponse], error) {
	return connect.NewResponse(&gatewayv1.GetProcessResponse{Process: exitedProcess(sandbox.ProcessID(req.Msg.ProcessId))}), nil
}

func (knowing) AckProcesses(context.Context, *connect.Request[gatewayv1.AckProcessesRequest]) (*connect.Response[gatewayv1.AckProcessesResponse], error) {
	return connect.NewResponse(&gatewayv1.AckProcessesResponse{}), nil
}

func exitedProcess(id sandbox.ProcessID) *agentv1.Process {
	return &agentv1.Process{ProcessId: string(id), State: agentv1.ProcessState_PROCESS_STATE_EXITED}
}

// watchWorld is a control with a store, whose lanes are the test's.
func watchWorld(t *testing.T) *Control {
	t.Helper()
	c := &Control{Deps: Deps{Store: testOutbox(time.Now), Gateway: knowing{}, Logger: slog.New(slog.DiscardHandler), Now: time.Now,
		Limits: Limits{}.withDefaults()}, base: t.Context(), events: newLanes(), waiting: newNotifier(), gateway: newLink("gateway"),
		routes: newRoutes(), holds: newHolds(), recorders: newRecorders()}
	t.Cleanup(c.events.close)
	return c
}

func (w *processWatch) tell(t *testing.T, id sandbox.ID, p *agentv1.Process) {
	t.Helper()
	if err := w.process(&gatewayv1.WatchResponse_ProcessChanged{SandboxId: string(id), Process: p}); err != nil {
		t.Fatal(err)
	}
}

// session is an open command session of a sandbox.
func (c *Control) session(t *testing.T, id sandbox.ID) sandbox.Command {
	t.Helper()
	cmd := sandbox.Command{ID: sandbox.NewCommandID(), SandboxID: id, ProcessID: sandbox.NewProcessID(), State: sandbox.CommandRunning}
	if err := c.Store.Update(t.Context(), func(tx store.Tx) error { return tx.InsertCommand(cmd) }); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func (c *Control) awaitExit(t *testing.T, id sandbox.CommandID) {
	t.Helper()
	cmd, err := c.waitCommand(t.Context(), id)
	if err != nil || cmd.State != sandbox.CommandExited {
		t.Fatalf("%s: %s %v", id, cmd.State, err)
	}
}

// Many guests that report without end, and whose states cannot be recorded now, hold up no other one; and their own
// sessions are not lost for what was dropped.
func TestManyFloodingGuestsHoldUpNobody(t *testing.T) {
	t.Parallel()
	c := watchWorld(t)
	w := newProcessWatch(c)
	release, entered := make(chan struct{}), make(chan struct{})
	hostile := make([]sandbox.ID, maxPending/maxPendingSandbox+2)
	for i := range hostile {
		hostile[i] = sandbox.NewID()
		c.events.do(string(hostile[i]), func() { entered <- struct{}{}; <-release })
		<-entered
	}
	for _, id := range hostile {
		for range maxPendingSandbox + 1 {
			w.tell(t, id, &agentv1.Process{ProcessId: string(sandbox.NewProcessID()), State: agentv1.ProcessState_PROCESS_STATE_RUNNING})
		}
	}
	dropped := c.session(t, hostile[0]) // its end finds no room
	w.tell(t, hostile[0], exitedProcess(dropped.ProcessID))
	other := c.session(t, sandbox.NewID())
	w.tell(t, other.SandboxID, exitedProcess(other.ProcessID))
	c.awaitExit(t, other.ID)
	close(release)
	c.awaitExit(t, dropped.ID)
	c.events.close()
	if w.shared != 0 || len(w.pending) != 0 {
		t.Errorf("%d shared places taken, %d sandboxes wait", w.shared, len(w.pending))
	}
}
