package control

import (
	"context"
	"time"

	nodev1 "github.com/space-sandbox/space/api/proto/node/v1"
	"github.com/space-sandbox/space/internal/failpoint"
	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
)

// pause holds the route, so that clients are told instead of left hanging, and then stops the vCPUs.
func (c *Control) pause(ctx context.Context, r *operation.Run, id sandbox.ID) (landing, error) {
	var box sandbox.Sandbox
	err := r.Step(ctx, "hold", func(ctx context.Context) (err error) {
		if box, err = c.Store.Sandbox(ctx, id); err != nil {
			return storeError(err)
		}
		c.reroute(ctx, box, heldPaused)
		failpoint.Hit(failpoint.RouteHeld)
		return nil
	})
	if err != nil {
		return landing{}, err
	}
	var machine *nodev1.Machine
	err = r.Try(ctx, "machine", retry(c.node, c.Limits.PauseDeadline), func(ctx context.Context) (err error) {
		machine, err = c.pauseMachine(ctx, box, 0)
		return err
	})
	if err != nil {
		return landing{}, err
	}
	failpoint.Hit(failpoint.MachinePaused)
	if machine.GetState() != nodev1.MachineState_MACHINE_STATE_PAUSED {
		return landing{}, notAs(machine, "paused")
	}
	return landing{state: sandbox.StatePaused, machine: machine}, nil
}

func (c *Control) pauseMachine(ctx context.Context, box sandbox.Sandbox, timeout time.Duration) (*nodev1.Machine, error) {
	res, err := call(ctx, timeout, c.Deps.Node.PauseMachine,
		&nodev1.PauseMachineRequest{SandboxId: string(box.ID), Generation: box.Generation})
	return res.GetMachine(), err
}

// notAs is the error of a call after which the machine is not what it should be.
func notAs(m *nodev1.Machine, want string) error {
	if m.GetState() == nodev1.MachineState_MACHINE_STATE_EXITED {
		return endedError(m)
	}
	return &sandbox.Error{Code: sandbox.CodeVMMFailed, Message: "the machine is not " + want,
		Cause: "node answers " + m.GetState().String(), Remedy: "try again; the log of the node has the details"}
}

// endedError is the failure of an operation whose machine has ended meanwhile.
func endedError(m *nodev1.Machine) *sandbox.Error {
	e := exitError(m)
	e.Message = "the machine has ended"
	e.Remedy = "recover the sandbox: its disk is kept"
	return e
}
