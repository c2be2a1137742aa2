package control

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
)

func isMissing(err error) bool { return errors.Is(err, store.ErrNotFound) }

func processEnded(p *agentv1.Process) bool {
	return p.GetState() == agentv1.ProcessState_PROCESS_STATE_EXITED || p.GetState() == agentv1.ProcessState_PROCESS_STATE_FAILED
}

// maxErrorMessage bounds what is kept of a message from a guest.
const maxErrorMessage = 1024

// advance returns cmd as p describes it and whether its state has changed. An ended session stays as it is, and none
// goes back to created.
func (c *Control) advance(cmd sandbox.Command, p *agentv1.Process) (sandbox.Command, bool) {
	if cmd.State.Ended() {
		return cmd, false
	}
	before := cmd.State
	cmd.StdoutBytes, cmd.StderrBytes = p.GetStdoutBytes(), p.GetStderrBytes()
	cmd.PTYBytes = p.GetPtyBytes()
	cmd.StdinBytes, cmd.Truncated = p.GetStdinBytes(), p.GetTruncatedBytes()
	switch p.GetState() {
	case agentv1.ProcessState_PROCESS_STATE_RUNNING:
		cmd.State = sandbox.CommandRunning
	case agentv1.ProcessState_PROCESS_STATE_EXITED:
		code := int(p.GetExitCode())
		cmd.State, cmd.ExitCode, cmd.Signal = sandbox.CommandExited, &code, cut(p.GetSignal(), 32)
	case agentv1.ProcessState_PROCESS_STATE_FAILED:
		cmd.State = sandbox.CommandFailed
		if p.GetErrorCode() == string(sandbox.CommandExpired) {
			cmd.State = sandbox.CommandExpired
		}
	default:
		return cmd, false
	}
	if pid := p.GetPid(); pid > 0 {
		cmd.PID = int(pid)
	}
	now := c.Now().UTC()
	if p.GetStartedAt() != nil && cmd.StartedAt.IsZero() {
		cmd.StartedAt = within(p.GetStartedAt().AsTime(), cmd.CreatedAt, now)
	}
	if cmd.State.Ended() {
		cmd.ErrorCode, cmd.ErrorMessage = cut(p.GetErrorCode(), 64), cut(p.GetErrorMessage(), maxErrorMessage)
		cmd.EndedAt = now
		if p.GetEndedAt() != nil {
			// What was done to the start is done to the end: how long it ran, the guest knows best.
			var moved time.Duration
			if p.GetStartedAt() != nil {
				moved = cmd.StartedAt.Sub(p.GetStartedAt().AsTime())
			}
			cmd.EndedAt = within(p.GetEndedAt().AsTime().Add(moved), latest(cmd.CreatedAt, cmd.StartedAt), now)
		}
	}
	return cmd, cmd.State != before
}

// within moves t, which a guest said, between what the host knows: a guest may set its clock to anything, and records
// must still tell what came before what.
func within(t, from, to time.Time) time.Time {
	switch {
	case t.Before(from):
		return from
	case t.After(to):
		return latest(from, to)
	}
	return t
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// cut bounds text from a guest.
func cut(s string, n int) string { return strings.ToValidUTF8(s[:min(len(s), n)], "") }

// changeCommand applies change to a session's present record, durably, and wakes who waits for it. change returns
// false when there is nothing to do.
func (c *Control) changeCommand(ctx context.Context, id sandbox.CommandID,
	change func(sandbox.Command) (sandbox.Command, bool)) (out sandbox.Command, err error) {
	changed := false
	err = c.Store.Update(ctx, func(tx store.Tx) error {
		out, err = tx.Command(ctx, id)
		if err != nil {
			return err
		}
		var next sandbox.Command
		if next, changed = change(out); !changed {
			return nil
		}
		out, err = tx.UpdateCommand(next)
		return err
	})
	if err == nil && changed {
		c.waiting.notify(string(id))
	}
	return out, err
}

// holds marks sessions that need care while a call works on them.
type holds struct {
	mu     sync.Mutex
	births map[sandbox.CommandID]int // their process is being made
	reads  map[sandbox.CommandID]int // their output is still to be read: no ack
}

func newHolds() *holds {
	return &holds{births: map[sandbox.CommandID]int{}, reads: map[sandbox.CommandID]int{}}
}

func (h *holds) count(m map[sandbox.CommandID]int, id sandbox.CommandID, by int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m[id] += by; m[id] <= 0 {
		delete(m, id)
	}
}

// make marks a session whose process is being made, until the returned function is called.
func (h *holds) make(id sandbox.CommandID) (done func()) {
	h.count(h.births, id, 1)
	return func() { h.count(h.births, id, -1) }
}

// read keeps the agent from forgetting a process, until the returned function is called.
func (h *holds) read(id sandbox.CommandID) (done func()) {
	h.count(h.reads, id, 1)
	return func() { h.count(h.reads, id, -1) }
}

func (h *holds) making(id sandbox.CommandID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.births[id] > 0
}

func (h *holds) held(id sandbox.CommandID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.reads[id] > 0
}
