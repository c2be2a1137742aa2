package control

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/space-sandbox/space/internal/sandbox"
)

// expire gives up sessions that nobody has attached to in time, until ctx ends.
func (c *Control) expire(ctx context.Context) {
	ticker := time.NewTicker(max(c.Limits.AttachWithin/20, time.Millisecond))
	defer ticker.Stop()
	working := &inHand{ids: map[sandbox.ID]bool{}}
	defer working.work.Wait()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		if err := c.expireOverdue(ctx, working); err != nil && ctx.Err() == nil {
			c.Logger.Warn("command sessions could not be expired", "error", err)
		}
	}
}

// expireOverdue begins with every sandbox that has sessions to give up. Their guests are asked side by side, and one
// that does not answer is not asked twice at a time: it delays nobody else.
func (c *Control) expireOverdue(ctx context.Context, working *inHand) error {
	boxes, err := c.Store.LiveSandboxes(ctx)
	if err != nil {
		return err
	}
	for _, box := range boxes {
		if box.State != sandbox.StateRunning {
			continue
		}
		open, err := c.Store.OpenCommands(ctx, box.ID)
		if err != nil {
			return err
		}
		overdue := slices.DeleteFunc(open, func(cmd sandbox.Command) bool {
			return cmd.State != sandbox.CommandCreated || !c.isOverdue(cmd)
		})
		if len(overdue) == 0 || !working.begin(box.ID) {
			continue
		}
		working.work.Go(func() {
			defer working.end(box.ID)
			for _, cmd := range overdue {
				if _, err := c.giveUp(ctx, cmd, true); err != nil {
					c.Logger.Debug("expire", "command_id", cmd.ID, "error", err) // at the next tick again
				}
			}
		})
	}
	return nil
}

// inHand knows which sandboxes are being worked on.
type inHand struct {
	work sync.WaitGroup

	mu  sync.Mutex
	ids map[sandbox.ID]bool
}

func (h *inHand) begin(id sandbox.ID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ids[id] {
		return false
	}
	h.ids[id] = true
	return true
}

func (h *inHand) end(id sandbox.ID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.ids, id)
}

// isOverdue reports whether a session's time for a first attach is over.
func (c *Control) isOverdue(cmd sandbox.Command) bool {
	return c.Now().Sub(cmd.CreatedAt) >= c.Limits.AttachWithin
}

// giveUp ends a session that has not been started. The agent decides: a process that was started in the meantime goes
// on, and the record says so.
func (c *Control) giveUp(ctx context.Context, cmd sandbox.Command, expired bool) (sandbox.Command, error) {
	if err := c.gateway.check(); err != nil {
		return cmd, err
	}
	if err := c.ackProcess(ctx, cmd.SandboxID, cmd.ProcessID, expired); err != nil {
		return cmd, c.guestError(err)
	}
	p, err := c.process(ctx, c.Limits.CallTimeout, cmd)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound { // forgotten already; the watch has brought its end, or brings it now
		return c.command(ctx, cmd.ID)
	}
	if err != nil {
		return cmd, c.guestError(err)
	}
	now, err := c.recordProcess(context.WithoutCancel(ctx), cmd.SandboxID, p)
	if err == nil && now.ID == "" {
		return cmd, noCommand(cmd.ID) // deleted together with its sandbox
	}
	return now, storeError(err)
}
