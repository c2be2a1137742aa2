package control

import (
	"context"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	gatewayv1 "github.com/space-sandbox/space/api/proto/gateway/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

// ResizeCommand changes the size of a session's terminal; of one that was not started, the size it starts with.
func (c *Control) ResizeCommand(ctx context.Context, id sandbox.CommandID, size sandbox.TerminalSize) (sandbox.Command, error) {
	cmd, err := c.command(ctx, id)
	if err != nil {
		return cmd, err
	}
	if cmd.Spec.PTY == nil {
		return cmd, &sandbox.Error{Code: sandbox.CodeInvalidState, Message: "the process has no terminal",
			Cause: "the command session was created without pty", Remedy: `create it with "pty": {"cols": 80, "rows": 24}`}
	}
	if cmd.State.Ended() {
		return cmd, notRunning(cmd)
	}
	if err := c.mustRun(ctx, cmd.SandboxID, "a change of a terminal's size"); err != nil {
		return cmd, err
	}
	if err := c.gateway.check(); err != nil {
		return cmd, err
	}
	res, err := call(ctx, c.Limits.CallTimeout, c.Deps.Gateway.ResizeProcess, &gatewayv1.ResizeProcessRequest{
		SandboxId: string(cmd.SandboxID), ProcessId: string(cmd.ProcessID),
		Size: &agentv1.TerminalSize{Cols: uint32(size.Cols), Rows: uint32(size.Rows)}})
	if err != nil {
		return cmd, c.guestError(err)
	}
	cmd, _ = c.advance(cmd, res.GetProcess())
	return cmd, nil
}
