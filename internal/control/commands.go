package control

import (
	"context"
	"errors"
	"maps"
	"strings"
	"time"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	gatewayv1 "github.com/space-sandbox/space/api/proto/gateway/v1"
	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
)

// CreateCommand registers a session in a running sandbox and, with start, starts it. A process that cannot be started
// is no error: the session's state is failed then.
func (c *Control) CreateCommand(ctx context.Context, call Call, ref string, spec sandbox.CommandSpec, start bool) (CreatedCommand, error) {
	cmd, replayed, err := c.newCommand(ctx, call, ref, spec)
	if err != nil {
		return CreatedCommand{}, err
	}
	if start {
		if cmd, err = c.startPatiently(ctx, cmd); err != nil {
			return CreatedCommand{}, err
		}
	}
	attach, err := c.attach(call.Principal, cmd)
	return CreatedCommand{Command: cmd, Attach: attach, Replayed: replayed}, err
}

// newCommand makes the row, then the process. When the process cannot be made, the row goes again: nothing happened.
func (c *Control) newCommand(ctx context.Context, call Call, ref string, spec sandbox.CommandSpec) (sandbox.Command, bool, error) {
	if cmd, found, err := c.replayedCommand(ctx, call); found || err != nil {
		return cmd, found, err
	}
	if err := checkCommand(spec); err != nil {
		return sandbox.Command{}, false, err
	}
	spec.Stdin = spec.Stdin || spec.PTY != nil
	if spec.Record && c.Transcripts == nil {
		return sandbox.Command{}, false, &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "this server cannot record sessions",
			Cause: "it has no place for transcripts", Remedy: "leave record out"}
	}
	if err := c.gateway.check(); err != nil {
		return sandbox.Command{}, false, err
	}
	cmd := sandbox.Command{ID: sandbox.NewCommandID(), ProcessID: sandbox.NewProcessID(), Spec: spec,
		State: sandbox.CommandCreated, CreatedAt: c.Now().UTC()}
	defer c.holds.make(cmd.ID)()
	err := c.Store.Update(ctx, func(tx store.Tx) error {
		box, err := find(ctx, tx, ref)
		if err != nil {
			return err
		}
		if err := checkCall(call, box); err != nil {
			return err
		}
		if box.State != sandbox.StateRunning {
			return notIn(box, "a command")
		}
		if err := c.remember(ctx, tx, call, string(cmd.ID)); err != nil {
			return err
		}
		cmd.SandboxID = box.ID
		return tx.InsertCommand(cmd)
	})
	if errors.Is(err, errReplay) {
		return c.replayedCommand(ctx, call)
	}
	if err != nil {
		return sandbox.Command{}, false, storeError(err)
	}
	cmd.Revision = 1
	if err := c.makeProcess(ctx, cmd); err != nil {
		return sandbox.Command{}, false, errors.Join(err, c.forgetCommand(ctx, call, cmd.ID))
	}
	return cmd, false, nil
}

func (c *Control) replayedCommand(ctx context.Context, call Call) (sandbox.Command, bool, error) {
	entry, found, err := c.seen(ctx, c.Store, call)
	if err != nil || !found {
		return sandbox.Command{}, false, err
	}
	cmd, err := c.command(ctx, sandbox.CommandID(entry.ResultID))
	if err == nil && cmd.State == sandbox.CommandCreated { // the first call may not have got so far
		err = c.makeProcess(ctx, cmd)
	}
	return cmd, true, err
}

// forgetCommand undoes the acceptance of a session that never had a process.
func (c *Control) forgetCommand(ctx context.Context, call Call, id sandbox.CommandID) error {
	ctx = context.WithoutCancel(ctx)
	return c.Store.Update(ctx, func(tx store.Tx) error {
		if call.Idempotency != nil {
			if err := tx.DeleteIdempotency(call.idempotencyID()); err != nil {
				return err
			}
		}
		return tx.DeleteCommand(id)
	})
}

// makeProcess makes a session's process in the guest, without starting it. Idempotent. The environment is put together
// here: template, then sandbox, then command.
func (c *Control) makeProcess(ctx context.Context, cmd sandbox.Command) error {
	box, err := c.Store.Sandbox(ctx, cmd.SandboxID)
	if err != nil {
		return storeError(err)
	}
	tpl, err := c.Store.Template(ctx, box.Template.Digest)
	if err != nil {
		return storeError(err)
	}
	env := map[string]string{}
	for _, layer := range []map[string]string{tpl.Env, box.Env, cmd.Spec.Env} {
		maps.Copy(env, layer)
	}
	pty := cmd.Spec.PTY
	spec := &agentv1.ProcessSpec{Argv: cmd.Spec.Argv, Env: env, Cwd: cmd.Spec.Cwd, User: cmd.Spec.User,
		Stdin: cmd.Spec.Stdin, TimeoutSeconds: cmd.Spec.TimeoutSeconds}
	if pty != nil {
		spec.Pty = &agentv1.TerminalSize{Cols: uint32(pty.Cols), Rows: uint32(pty.Rows)}
	}
	if spec.User == "" {
		spec.User = tpl.User
	}
	if spec.Cwd == "" {
		spec.Cwd = tpl.Workdir
	}
	patient, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.Limits.StartPatience)
	defer cancel()
	// Without a lock, for the guest may take its time: the gateway keeps a session that a Configure does not know.
	err = c.insist(patient, c.gateway, "CreateProcess", transient, func(ctx context.Context) error {
		_, err := call(ctx, c.Limits.CallTimeout, c.Deps.Gateway.CreateProcess, &gatewayv1.CreateProcessRequest{
			SandboxId: string(cmd.SandboxID), CommandId: string(cmd.ID), ProcessId: string(cmd.ProcessID), Spec: spec})
		return err
	})
	return c.guestError(err)
}

// guestError is the answer to a call that could not reach the guest, or whose guest did not answer.
func (c *Control) guestError(err error) error {
	if sandbox.CodeOf(err) == sandbox.CodeDeadline && errors.Is(err, context.DeadlineExceeded) { // ours, not the guest's word
		return &sandbox.Error{Code: sandbox.CodeGuestNotReady, Message: "the sandbox did not answer in time",
			Remedy: "try again; if it stays so, the sandbox hangs", Err: err}
	}
	if errors.Is(err, context.DeadlineExceeded) && sandbox.CodeOf(err) == sandbox.CodeInternal {
		return &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the sandbox cannot be reached at the moment",
			Cause: "the gateway did not answer", Remedy: "try again in a moment", Err: err}
	}
	return err
}

// startPatiently starts a session that was accepted, whether or not the caller is still there.
func (c *Control) startPatiently(ctx context.Context, cmd sandbox.Command) (sandbox.Command, error) {
	patient, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.Limits.StartPatience)
	defer cancel()
	return c.startCommand(patient, cmd)
}

// startCommand starts a session's process, waiting for a gateway that is away until ctx ends. Idempotent.
func (c *Control) startCommand(ctx context.Context, cmd sandbox.Command) (sandbox.Command, error) {
	if cmd.State != sandbox.CommandCreated {
		return cmd, nil
	}
	var process *agentv1.Process
	err := c.insist(ctx, c.gateway, "StartProcess", c.againWhileOpen(cmd.ID), func(ctx context.Context) error {
		res, err := call(ctx, c.Limits.CallTimeout, c.Deps.Gateway.StartProcess,
			&gatewayv1.StartProcessRequest{SandboxId: string(cmd.SandboxID), ProcessId: string(cmd.ProcessID)})
		process = res.GetProcess()
		return err
	})
	if err != nil {
		if now, lerr := c.command(context.WithoutCancel(ctx), cmd.ID); lerr == nil && now.State != sandbox.CommandCreated {
			return now, nil // it was started, or lost its machine, while the answer was on its way
		}
		return sandbox.Command{}, c.guestError(err)
	}
	now, err := c.recordProcess(context.WithoutCancel(ctx), cmd.SandboxID, process)
	if err == nil && now.ID == "" {
		return sandbox.Command{}, noCommand(cmd.ID) // deleted together with its sandbox
	}
	return now, storeError(err)
}

// againWhileOpen makes insist go on over restarts of the gateway, as long as the session is open.
func (c *Control) againWhileOpen(id sandbox.CommandID) func(error) bool {
	return func(err error) bool {
		if !transient(err) {
			return false
		}
		cmd, err := c.Store.Command(c.base, id)
		return err == nil && !cmd.State.Ended()
	}
}

// command returns a session's record.
func (c *Control) command(ctx context.Context, id sandbox.CommandID) (sandbox.Command, error) {
	cmd, err := c.Store.Command(ctx, id)
	if isMissing(err) {
		return cmd, noCommand(id)
	}
	return cmd, storeError(err)
}

// GetCommand returns a session, after waiting for its end at most wait. The sizes of a running one are asked from the
// guest when that is possible at once.
func (c *Control) GetCommand(ctx context.Context, id sandbox.CommandID, wait time.Duration) (sandbox.Command, error) {
	if wait > 0 {
		limited, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		if cmd, err := c.waitCommand(limited, id); err != nil || cmd.State.Ended() {
			return cmd, err
		}
	}
	cmd, err := c.command(ctx, id)
	if err != nil || cmd.State != sandbox.CommandRunning || c.gateway.check() != nil {
		return cmd, err
	}
	if p, err := c.process(ctx, liveTimeout, cmd); err == nil && !processEnded(p) {
		cmd, _ = c.advance(cmd, p)
	}
	return cmd, nil
}

// liveTimeout bounds how long GetCommand waits for the present sizes.
const liveTimeout = 2 * time.Second

func (c *Control) process(ctx context.Context, timeout time.Duration, cmd sandbox.Command) (*agentv1.Process, error) {
	res, err := call(ctx, timeout, c.Deps.Gateway.GetProcess,
		&gatewayv1.GetProcessRequest{SandboxId: string(cmd.SandboxID), ProcessId: string(cmd.ProcessID)})
	return res.GetProcess(), err
}

// waitCommand waits until a session has ended or ctx ends, which is no error.
func (c *Control) waitCommand(ctx context.Context, id sandbox.CommandID) (sandbox.Command, error) {
	for {
		changed, release := c.waiting.subscribe(string(id))
		cmd, err := c.command(context.WithoutCancel(ctx), id)
		if err != nil || cmd.State.Ended() {
			release()
			return cmd, err
		}
		select {
		case <-changed:
			release()
		case <-ctx.Done():
			release()
			return cmd, nil
		}
	}
}

// ListCommands returns one page of a sandbox's sessions.
func (c *Control) ListCommands(ctx context.Context, ref string, filter CommandFilter) (Page[sandbox.Command], error) {
	box, err := find(ctx, c.Store, ref)
	if err != nil {
		return Page[sandbox.Command]{}, err
	}
	page, err := c.Store.Commands(ctx, box.ID, filter)
	return page, storeError(err)
}

// AttachCommand makes a token for a session. It expires no later than what by may do.
func (c *Control) AttachCommand(ctx context.Context, by auth.Principal, id sandbox.CommandID) (Attach, error) {
	cmd, err := c.command(ctx, id)
	if err != nil {
		return Attach{}, err
	}
	if cmd.State == sandbox.CommandLost || cmd.State == sandbox.CommandExpired {
		return Attach{}, &sandbox.Error{Code: sandbox.CodeInvalidState, Message: "there is nothing to attach to",
			Cause: cmd.Condition(), Remedy: "create another one"}
	}
	return c.attach(by, cmd)
}

func (c *Control) attach(by auth.Principal, cmd sandbox.Command) (Attach, error) {
	token, expires, err := c.Signer.SignAttach(auth.AttachClaims{CommandID: cmd.ID, SandboxID: cmd.SandboxID,
		ProcessID: cmd.ProcessID, ExpiresAt: c.attachUntil(by)})
	if err != nil {
		return Attach{}, err
	}
	url := "ws" + strings.TrimPrefix(strings.TrimSuffix(c.DataPlaneURL, "/"), "http") // https becomes wss
	return Attach{URL: url + "/v1/attach/" + string(cmd.ID), Token: token, ExpiresAt: expires}, nil
}

// SignalCommand signals the process group of a running command.
func (c *Control) SignalCommand(ctx context.Context, id sandbox.CommandID, signal string) (sandbox.Command, error) {
	cmd, err := c.command(ctx, id)
	if err != nil {
		return cmd, err
	}
	if cmd.State.Ended() {
		return cmd, notRunning(cmd)
	}
	if err := c.mustRun(ctx, cmd.SandboxID, "a signal"); err != nil {
		return cmd, err
	}
	if err := c.gateway.check(); err != nil {
		return cmd, err
	}
	res, err := call(ctx, c.Limits.CallTimeout, c.Deps.Gateway.SignalProcess, &gatewayv1.SignalProcessRequest{
		SandboxId: string(cmd.SandboxID), ProcessId: string(cmd.ProcessID), Signal: signal})
	if err != nil {
		return cmd, c.guestError(err)
	}
	cmd, _ = c.advance(cmd, res.Process)
	return cmd, nil
}

func notRunning(cmd sandbox.Command) error {
	return &sandbox.Error{Code: sandbox.CodeNotRunning, Message: "the process is not running",
		Cause: cmd.Condition()}
}

// KillCommand kills the process group. One that was not started is given up and has failed; an ended command stays as
// it is.
func (c *Control) KillCommand(ctx context.Context, id sandbox.CommandID) (sandbox.Command, error) {
	cmd, err := c.command(ctx, id)
	if err == nil && !cmd.State.Ended() {
		err = c.mustRun(ctx, cmd.SandboxID, "the end of a command")
	}
	if err == nil && cmd.State == sandbox.CommandCreated {
		cmd, err = c.giveUp(ctx, cmd, false)
	}
	if err != nil || cmd.State.Ended() {
		return cmd, err
	}
	cmd, err = c.SignalCommand(ctx, id, "SIGKILL")
	if sandbox.CodeOf(err) != sandbox.CodeNotRunning {
		return cmd, err
	}
	now, lerr := c.command(ctx, id) // it may have ended just now
	if lerr == nil && now.State == sandbox.CommandRunning {
		if p, perr := c.process(ctx, c.Limits.CallTimeout, now); perr == nil && processEnded(p) {
			return c.recordProcess(context.WithoutCancel(ctx), now.SandboxID, p)
		}
	}
	if lerr == nil && now.State.Ended() {
		return now, nil
	}
	return now, err
}
