package control

import (
	"context"
	"time"

	"github.com/space-sandbox/space/internal/sandbox"
)

// expire gives up sessions that nobody has attached to in time, until ctx ends.
func (c *Control) expire(ctx context.Context) {
	ticker := time.NewTicker(max(c.Limits.AttachWithin/20, time.Millisecond))
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		if err := c.expireOverdue(ctx); err != nil && ctx.Err() == nil {
			c.Logger.Warn("command sessions could not be expired", "error", err)
		}
	}
}

func (c *Control) expireOverdue(ctx context.Context) error {
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
		for _, cmd := range open {
			if cmd.State != sandbox.CommandCreated || !c.isOverdue(cmd) {
				continue
			}
			if _, err := c.giveUp(ctx, cmd); err != nil {
				c.Logger.Debug("expire", "command_id", cmd.ID, "error", err) // at the next tick again
			}
		}
	}
	return nil
}

// isOverdue reports whether a session's time for a first attach is over.
func (c *Control) isOverdue(cmd sandbox.Command) bool {
	return c.Now().Sub(cmd.CreatedAt) >= c.Limits.AttachWithin
}

// giveUp ends a session that has not been started. The agent decides: a process that was started in the meantime goes
// on, and the record says so.
func (c *Control) giveUp(ctx context.Context, cmd sandbox.Command) (sandbox.Command, error) {
	if err := c.gateway.check(); err != nil {
		return cmd, err
	}
	if err := c.ackProcess(ctx, cmd.SandboxID, cmd.ProcessID); err != nil {
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
