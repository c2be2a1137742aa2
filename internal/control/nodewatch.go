package control

import (
	"context"
	"fmt"

	"connectrpc.com/connect"

	nodev1 "github.com/space-sandbox/space/api/proto/node/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

// followNode keeps the record in agreement with node while one watch lasts.
func (c *Control) followNode(ctx context.Context) error {
	if _, err := c.askNode(ctx); err != nil {
		return err
	}
	if err := c.syncTemplates(ctx); err != nil {
		return err
	}
	stream, err := c.Deps.Node.WatchMachines(ctx, connect.NewRequest(&nodev1.WatchMachinesRequest{}))
	if err != nil {
		return stopped(ctx, err)
	}
	defer func() { _ = stream.Close() }() // Err has said what went wrong
	for stream.Receive() {
		if err := c.nodeEvent(ctx, stream.Msg()); err != nil {
			return err
		}
	}
	return stopped(ctx, stream.Err())
}

func (c *Control) nodeEvent(ctx context.Context, msg *nodev1.WatchMachinesResponse) error {
	switch e := msg.Event.(type) {
	case *nodev1.WatchMachinesResponse_Machine:
		return c.machineSeen(ctx, e.Machine)
	case *nodev1.WatchMachinesResponse_DeletedSandboxId:
		id, err := sandbox.ParseID(e.DeletedSandboxId)
		if err != nil {
			return fmt.Errorf("node: %w", err)
		}
		return c.machineGone(ctx, id)
	case *nodev1.WatchMachinesResponse_Synced:
		if err := c.reconcile(ctx); err != nil {
			return err
		}
		c.node.set(true)
	}
	return nil
}

// machineSeen compares one machine with its record. What follows happens in the sandbox's lane, behind what is under
// way there; only the end of a machine on which an operation works is told at once, so that the operation does not wait
// for a guest that will never answer.
func (c *Control) machineSeen(ctx context.Context, m *nodev1.Machine) error {
	id, err := sandbox.ParseID(m.GetSandboxId())
	if err != nil {
		return fmt.Errorf("node: %w", err)
	}
	if m.GetReason() == sandbox.ReasonPoolFull {
		c.budget.doubt()
	}
	if m.GetState() == nodev1.MachineState_MACHINE_STATE_EXITED {
		if box, err := c.Store.Sandbox(ctx, id); err == nil && box.Generation == m.GetGeneration() {
			switch box.State {
			case sandbox.StateCreating:
				c.engine.Interrupt(box.OperationID, exitError(m))
			case sandbox.StatePausing, sandbox.StateResuming:
				c.engine.Interrupt(box.OperationID, endedError(m))
			}
		}
	}
	c.boxes.do(string(id), func() { c.observe(id, m) })
	return nil
}

// machineGone deals with a machine that was removed: by control itself, which then knows, or by somebody else.
func (c *Control) machineGone(ctx context.Context, id sandbox.ID) error {
	box, err := c.Store.Sandbox(ctx, id)
	if err == nil && hasMachine(box) {
		c.boxes.do(string(id), func() { c.observe(id, nil) })
	}
	return nil // a sandbox that is not known needs nothing
}

// hasMachine reports whether a sandbox at rest has a machine that lives.
func hasMachine(box sandbox.Sandbox) bool {
	return box.State == sandbox.StateRunning || box.State == sandbox.StatePaused
}

// reconcile finds sandboxes that have a machine in the record and none at node. The record is read before node is asked, so
// that a sandbox that became ready in between is not taken for lost.
func (c *Control) reconcile(ctx context.Context) error {
	live, err := c.Store.LiveSandboxes(ctx)
	if err != nil {
		return storeError(err)
	}
	res, err := call(ctx, c.Limits.CallTimeout, c.Deps.Node.ListMachines, &nodev1.ListMachinesRequest{})
	if err != nil {
		return err
	}
	have := map[string]bool{}
	for _, m := range res.Machines {
		have[m.SandboxId] = true
	}
	for _, box := range live {
		if hasMachine(box) && !have[string(box.ID)] {
			c.boxes.do(string(box.ID), func() { c.observe(box.ID, nil) })
		}
	}
	return nil
}
