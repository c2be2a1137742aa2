package control

import (
	"context"
	"errors"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	gatewayv1 "github.com/space-sandbox/space/api/proto/gateway/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

const (
	// maxExecOutput is how much of each stream an exec returns.
	maxExecOutput = 1 << 20
	readChunk     = 256 << 10
	writeChunk    = 64 << 10
)

// Exec runs a command to its end. It needs the gateway only in passing: over a restart of it, the session goes on and
// so does Exec. When ctx ends first, the command goes on and the result says how far it is.
func (c *Control) Exec(ctx context.Context, call Call, ref string, spec sandbox.CommandSpec, stdin []byte) (ExecResult, error) {
	spec.Stdin = spec.Stdin || len(stdin) > 0 || spec.PTY != nil
	giveBack, err := c.stdinFor(ctx, ref, len(stdin))
	if err != nil {
		return ExecResult{}, err
	}
	x := &execution{c: c, stdin: stdin, giveBack: giveBack}
	defer x.unfed()
	cmd, replayed, err := c.newCommand(ctx, call, ref, spec)
	if err != nil {
		return ExecResult{}, err
	}
	defer c.letGo(cmd.ID, c.holds.read(cmd.ID)) // the agent keeps the output until it has been read here
	x.begin(cmd)
	if cmd, err = x.run(ctx); err != nil {
		return ExecResult{}, err
	}
	if !x.whole && (cmd.State == sandbox.CommandExited || cmd.State == sandbox.CommandRunning) {
		err = c.guestError(x.readRest(ctx))
	}
	if err != nil && !cmd.State.Ended() && c.mustRun(c.base, cmd.SandboxID, "output") != nil {
		err = nil // it stands still together with its sandbox: the answer says that it has not ended
	}
	return ExecResult{Command: cmd, Replayed: replayed, Stdout: x.first.data, Stderr: x.second.data}, err
}

// stdinFor reserves room for an exec's standard input. A sandbox that is not there is found out about later.
func (c *Control) stdinFor(ctx context.Context, ref string, n int) (giveBack func(), err error) {
	if n == 0 {
		return func() {}, nil
	}
	box, err := find(ctx, c.Store, ref)
	if err != nil && sandbox.CodeOf(err) != sandbox.CodeNotFound {
		return nil, err
	}
	return c.stdin.take(box.ID, n)
}

// letGo ends a hold on a session's output; once nobody holds it, the agent may forget an ended process.
func (c *Control) letGo(id sandbox.CommandID, release func()) {
	release()
	c.workers.Go(func() {
		cmd, err := c.Store.Command(c.base, id)
		if err == nil && cmd.State.Ended() && !c.holds.held(id) {
			c.ack(c.base, cmd.SandboxID, cmd.ProcessID)
		}
	})
}

// whileRunning makes insist go on over restarts of the gateway and over pauses, as long as there is a machine to ask.
func (c *Control) whileRunning(id sandbox.ID) func(error) bool {
	return func(err error) bool {
		if !transient(err) && !refusedHeld(err) {
			return false
		}
		box, err := c.Store.Sandbox(c.base, id)
		return err == nil && (box.State == sandbox.StateRunning || box.State == sandbox.StatePausing ||
			box.State == sandbox.StatePaused || box.State == sandbox.StateResuming)
	}
}

// refusedHeld reports whether the gateway refused a call since the machine stands still.
func refusedHeld(err error) bool { return sandbox.CodeOf(err) == sandbox.CodeInvalidState }

// feed writes data to a command's standard input, each byte once, and ends it. It goes on when the caller of Exec has
// gone, since half of its input is not what the command was asked to work on; it ends with the command.
func (c *Control) feed(cmd sandbox.Command, data []byte) {
	ctx, stop := context.WithCancel(c.base)
	defer stop()
	c.workers.Go(func() {
		defer stop()
		if _, err := c.waitCommand(ctx, cmd.ID); err != nil && ctx.Err() == nil {
			c.Logger.Debug("wait for a fed command", "command_id", cmd.ID, "error", err)
		}
	})
	offset := uint64(0)
	for {
		next, done, err := c.feedOnce(ctx, cmd, data, offset)
		if done || ctx.Err() != nil {
			return
		}
		if err != nil {
			c.Logger.Warn("standard input could not be written", "command_id", cmd.ID, "error", err)
			return
		}
		offset = next
	}
}

// feedOnce writes one chunk at offset and returns the next offset. When it is not clear what was accepted (the gateway
// went away, or another call with the same Idempotency-Key feeds too), it asks the agent.
func (c *Control) feedOnce(ctx context.Context, cmd sandbox.Command, data []byte, offset uint64) (next uint64, done bool, err error) {
	end := min(offset+writeChunk, uint64(len(data)))
	eof := end == uint64(len(data))
	// No timeout: the call ends when the command has read, or has ended.
	res, err := call(ctx, 0, c.Deps.Gateway.WriteStdin, &gatewayv1.WriteStdinRequest{SandboxId: string(cmd.SandboxID),
		ProcessId: string(cmd.ProcessID), Data: data[offset:end], Eof: eof, Offset: &offset})
	if err == nil {
		return res.StdinBytes, eof, nil
	}
	switch sandbox.CodeOf(err) {
	case sandbox.CodeStdinClosed, sandbox.CodeNotRunning, sandbox.CodeNotFound:
		return offset, true, nil // nobody reads it
	case sandbox.CodeUnavailable, sandbox.CodeStdinOffset, sandbox.CodeInvalidState: // away, or standing still
	default:
		return offset, false, err
	}
	var p *agentv1.Process
	err = c.insist(ctx, c.gateway, "GetProcess", c.whileRunning(cmd.SandboxID), func(ctx context.Context) (err error) {
		p, err = c.process(ctx, c.Limits.CallTimeout, cmd)
		return err
	})
	if err != nil {
		return offset, false, err
	}
	if p.GetStdinClosed() || processEnded(p) {
		return offset, true, nil
	}
	if p.GetStdinBytes() > uint64(len(data)) {
		return offset, false, errors.New("more was written than this exec has")
	}
	return p.GetStdinBytes(), false, nil
}
