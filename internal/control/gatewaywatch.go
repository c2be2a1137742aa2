package control

import (
	"context"

	"connectrpc.com/connect"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	gatewayv1 "github.com/space-sandbox/space/api/proto/gateway/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

// followGateway configures the gateway and records what it tells about processes, while one watch lasts.
func (c *Control) followGateway(ctx context.Context) error {
	stream, err := c.Deps.Gateway.Watch(ctx, connect.NewRequest(&gatewayv1.WatchRequest{}))
	if err != nil {
		return stopped(ctx, err)
	}
	defer func() { _ = stream.Close() }() // Err has said what went wrong
	w := newProcessWatch(c)
	for stream.Receive() {
		switch e := stream.Msg().Event.(type) {
		case *gatewayv1.WatchResponse_Hello_:
			err = c.configure(ctx)
		case *gatewayv1.WatchResponse_Process:
			err = w.process(e.Process)
		case *gatewayv1.WatchResponse_Synced_:
			err = w.synced(e.Synced)
		}
		if err != nil {
			return err
		}
	}
	return stopped(ctx, stream.Err())
}

// checkUnseen asks the agent for each open session it did not name: a process it does not know is lost if it ran, and
// is made again if it had not been started (control ended between its row and its process).
func (c *Control) checkUnseen(ctx context.Context, id sandbox.ID, seen map[sandbox.ProcessID]bool) error {
	open, err := c.Store.OpenCommands(ctx, id)
	if err != nil {
		return err
	}
	for _, cmd := range open {
		if seen[cmd.ProcessID] || c.holds.making(cmd.ID) {
			continue
		}
		res, err := call(ctx, c.Limits.CallTimeout, c.Deps.Gateway.GetProcess,
			&gatewayv1.GetProcessRequest{SandboxId: string(id), ProcessId: string(cmd.ProcessID)})
		switch {
		case err == nil:
			_, err = c.recordProcess(ctx, id, res.Process)
		case sandbox.CodeOf(err) == sandbox.CodeNotFound && !c.routes.open(id):
			return nil // it was the way to the guest that was not found: whoever closed it sees to the sessions
		case sandbox.CodeOf(err) == sandbox.CodeNotFound && cmd.State == sandbox.CommandCreated:
			err = c.makeProcess(ctx, cmd)
		case sandbox.CodeOf(err) == sandbox.CodeNotFound:
			_, err = c.recordLost(ctx, cmd.ID)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// recordProcess brings a session's record up to what the agent says, durably, and then lets the agent forget an ended
// process, unless somebody still needs its output. States never go back.
func (c *Control) recordProcess(ctx context.Context, id sandbox.ID, p *agentv1.Process) (sandbox.Command, error) {
	cmd, err := c.Store.CommandByProcess(ctx, id, sandbox.ProcessID(p.GetProcessId()))
	if isMissing(err) {
		if processEnded(p) { // of a session that is gone; nobody will ask for it
			c.ack(ctx, id, sandbox.ProcessID(p.GetProcessId()))
		}
		return sandbox.Command{}, nil
	}
	if err != nil {
		return sandbox.Command{}, err
	}
	if _, changed := c.advance(cmd, p); changed {
		cmd, err = c.changeCommand(ctx, cmd.ID, func(cmd sandbox.Command) (sandbox.Command, bool) { return c.advance(cmd, p) })
		if err != nil {
			return sandbox.Command{}, err
		}
	}
	c.record(cmd)
	if cmd.State.Ended() && processEnded(p) && !c.holds.held(cmd.ID) {
		c.ack(ctx, id, cmd.ProcessID)
	}
	return cmd, nil
}

func (c *Control) recordLost(ctx context.Context, id sandbox.CommandID) (sandbox.Command, error) {
	return c.changeCommand(ctx, id, func(cmd sandbox.Command) (sandbox.Command, bool) {
		if cmd.State.Ended() {
			return cmd, false
		}
		cmd.State, cmd.Reason, cmd.EndedAt = sandbox.CommandLost, "vm_exit", c.Now().UTC()
		return cmd, true
	})
}

// ack lets the agent forget a process whose result is durable. A lost call is made up for at the next watch.
func (c *Control) ack(ctx context.Context, id sandbox.ID, process sandbox.ProcessID) {
	if err := c.ackProcess(ctx, id, process, false); err != nil {
		c.Logger.Debug("ack", "sandbox_id", id, "process_id", process, "error", err)
	}
}

func (c *Control) ackProcess(ctx context.Context, id sandbox.ID, process sandbox.ProcessID, expired bool) error {
	_, err := call(ctx, c.Limits.AckTimeout, c.Deps.Gateway.AckProcesses,
		&gatewayv1.AckProcessesRequest{SandboxId: string(id), ProcessIds: []string{string(process)}, Expired: expired})
	return err
}
