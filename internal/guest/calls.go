package guest

import (
	"context"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

// unary makes a call that the agent answers at once, with callTimeout at most.
func unary[Req, Res any](ctx context.Context, call func(context.Context, *connect.Request[Req]) (*connect.Response[Res], error), req *Req) (*Res, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return waiting(ctx, call, req)
}

// waiting makes a call that may take as long as ctx lasts.
func waiting[Req, Res any](ctx context.Context, call func(context.Context, *connect.Request[Req]) (*connect.Response[Res], error), req *Req) (*Res, error) {
	res, err := call(ctx, connect.NewRequest(req))
	if err != nil {
		return nil, callError(ctx, err)
	}
	return res.Msg, nil
}

// Hello asks who is there.
func (c *Client) Hello(ctx context.Context) (*agentv1.HelloResponse, error) {
	res, err := unary(ctx, c.agent.Hello, &agentv1.HelloRequest{})
	if err != nil {
		return nil, err
	}
	return checkHello(res)
}

// Init gives the machine its identity.
func (c *Client) Init(ctx context.Context, req *agentv1.InitRequest) error {
	_, err := unary(ctx, c.agent.Init, req)
	return err
}

// AdjustClock moves the guest's clock; by 0 it only asks. It returns the guest's time, whatever that says: at the
// beginning of the call after a step, or somewhere in it.
func (c *Client) AdjustClock(ctx context.Context, by time.Duration) (time.Time, error) {
	req := &agentv1.AdjustClockRequest{}
	if by != 0 {
		req.By = durationpb.New(by)
	}
	res, err := unary(ctx, c.agent.AdjustClock, req)
	if err != nil {
		return time.Time{}, err
	}
	if err := res.WallTime.CheckValid(); err != nil {
		return time.Time{}, faultf("a time that is none: %s", err)
	}
	return res.WallTime.AsTime(), nil
}

// CreateProcess registers a process. The same id with the same specification succeeds again; with another one it is
// CodeIdempotencyConflict.
func (c *Client) CreateProcess(ctx context.Context, id sandbox.ProcessID, spec *agentv1.ProcessSpec) (*agentv1.Process, error) {
	res, err := unary(ctx, c.agent.CreateProcess, &agentv1.CreateProcessRequest{ProcessId: string(id), Spec: spec})
	if err != nil {
		return nil, err
	}
	return checkProcess(res.Process, id)
}

// StartProcess starts a process unless that was done before.
func (c *Client) StartProcess(ctx context.Context, id sandbox.ProcessID) (*agentv1.Process, error) {
	res, err := unary(ctx, c.agent.StartProcess, &agentv1.StartProcessRequest{ProcessId: string(id)})
	if err != nil {
		return nil, err
	}
	return checkProcess(res.Process, id)
}

// GetProcess returns a process as it is now.
func (c *Client) GetProcess(ctx context.Context, id sandbox.ProcessID) (*agentv1.Process, error) {
	res, err := unary(ctx, c.agent.GetProcess, &agentv1.GetProcessRequest{ProcessId: string(id)})
	if err != nil {
		return nil, err
	}
	return checkProcess(res.Process, id)
}

// SignalProcess signals a process group.
func (c *Client) SignalProcess(ctx context.Context, id sandbox.ProcessID, signal string) (*agentv1.Process, error) {
	res, err := unary(ctx, c.agent.SignalProcess, &agentv1.SignalProcessRequest{ProcessId: string(id), Signal: signal})
	if err != nil {
		return nil, err
	}
	return checkProcess(res.Process, id)
}

// ResizeProcess changes the size of a process's terminal.
func (c *Client) ResizeProcess(ctx context.Context, id sandbox.ProcessID, size *agentv1.TerminalSize) (*agentv1.Process, error) {
	res, err := unary(ctx, c.agent.ResizeProcess, &agentv1.ResizeProcessRequest{ProcessId: string(id), Size: size})
	if err != nil {
		return nil, err
	}
	return checkProcess(res.Process, id)
}

// WriteStdin appends to a process's standard input and returns how many bytes it has accepted in all. It waits while
// the pipe is full, as long as ctx lasts.
func (c *Client) WriteStdin(ctx context.Context, req *agentv1.WriteStdinRequest) (uint64, error) {
	res, err := waiting(ctx, c.agent.WriteStdin, req)
	if err != nil {
		return 0, err
	}
	least := uint64(len(req.Data))
	if req.Offset != nil {
		least += *req.Offset
	}
	if res.StdinBytes < least || res.StdinBytes > maxOffset || req.Offset != nil && res.StdinBytes != least {
		return 0, faultf("%d bytes of standard input after a write up to %d", res.StdinBytes, least)
	}
	return res.StdinBytes, nil
}

// AckProcesses lets the agent forget the results of ended processes, and gives up those that were not started: with
// expired because nobody has attached to them in time, else because they were deleted.
func (c *Client) AckProcesses(ctx context.Context, expired bool, ids ...sandbox.ProcessID) error {
	req := &agentv1.AckProcessesRequest{Expired: expired}
	for _, id := range ids {
		req.ProcessIds = append(req.ProcessIds, string(id))
	}
	_, err := unary(ctx, c.agent.AckProcesses, req)
	return err
}

// Shutdown asks the agent to end the machine.
func (c *Client) Shutdown(ctx context.Context) error {
	_, err := unary(ctx, c.agent.Shutdown, &agentv1.ShutdownRequest{})
	return err
}
