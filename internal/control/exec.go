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
	cmd, replayed, err := c.newCommand(ctx, call, ref, spec)
	if err != nil {
		return ExecResult{}, err
	}
	defer c.letGo(cmd.ID, c.holds.read(cmd.ID)) // the agent keeps the output until it has been read here
	if cmd, err = c.startPatiently(ctx, cmd); err != nil {
		return ExecResult{}, err
	}
	if spec.Stdin && !cmd.State.Ended() {
		c.workers.Go(func() { c.feed(cmd, stdin) })
	}
	if cmd, err = c.waitCommand(ctx, cmd.ID); err != nil {
		return ExecResult{}, err
	}
	out := ExecResult{Command: cmd, Replayed: replayed}
	if cmd.State != sandbox.CommandExited && cmd.State != sandbox.CommandRunning {
		return out, nil // nothing was written, or nobody is left to ask
	}
	reading := ctx
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		reading, cancel = context.WithTimeout(context.WithoutCancel(ctx), liveTimeout)
		defer cancel()
	}
	first := agentv1.OutputStream_OUTPUT_STREAM_STDOUT
	if spec.PTY != nil { // there is one stream then, and it is shown as the first
		first = agentv1.OutputStream_OUTPUT_STREAM_PTY
	}
	if out.Stdout, err = c.readOutput(reading, cmd, first); err != nil {
		return out, c.guestError(err)
	}
	if out.Stderr, err = c.readOutput(reading, cmd, agentv1.OutputStream_OUTPUT_STREAM_STDERR); err != nil {
		return out, c.guestError(err)
	}
	return out, nil
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

// readOutput reads the first maxExecOutput bytes of a stream that the agent still has.
func (c *Control) readOutput(ctx context.Context, cmd sandbox.Command, stream agentv1.OutputStream) ([]byte, error) {
	var out []byte
	offset := uint64(0)
	for len(out) < maxExecOutput {
		var res *gatewayv1.ReadOutputResponse
		patient, cancel := context.WithTimeout(ctx, c.Limits.StartPatience) // for a guest that cannot be reached any more
		err := c.insist(patient, c.gateway, "ReadOutput", c.whileRunning(cmd.SandboxID), func(ctx context.Context) (err error) {
			res, err = call(ctx, c.Limits.CallTimeout, c.Deps.Gateway.ReadOutput, &gatewayv1.ReadOutputRequest{
				SandboxId: string(cmd.SandboxID), ProcessId: string(cmd.ProcessID), Stream: stream, Offset: offset,
				MaxBytes: uint32(min(readChunk, maxExecOutput-len(out)))})
			return err
		})
		cancel()
		if err != nil {
			return out, err
		}
		data := res.Data[:min(len(res.Data), maxExecOutput-len(out))]
		out = append(out, data...)
		if !res.More || len(res.Data) == 0 {
			break
		}
		offset = res.Offset + uint64(len(res.Data))
	}
	return out, nil
}

// whileRunning makes insist go on over restarts of the gateway, as long as there is a machine to ask.
func (c *Control) whileRunning(id sandbox.ID) func(error) bool {
	return func(err error) bool {
		if !transient(err) {
			return false
		}
		box, err := c.Store.Sandbox(c.base, id)
		return err == nil && box.State == sandbox.StateRunning
	}
}

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
	case sandbox.CodeUnavailable, sandbox.CodeStdinOffset:
	default:
		return offset, false, err
	}
	var p *agentv1.Process
	err = c.insist(ctx, c.gateway, "GetProcess", transient, func(ctx context.Context) (err error) {
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
