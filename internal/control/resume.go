package control

import (
	"context"
	"time"

	nodev1 "github.com/space-sandbox/space/api/proto/node/v1"
	"github.com/space-sandbox/space/internal/failpoint"
	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
)

// resume lets the vCPUs go on, has the guest's clock set, and opens the way to it again.
func (c *Control) resume(ctx context.Context, r *operation.Run, id sandbox.ID) (landing, error) {
	var box sandbox.Sandbox
	var machine *nodev1.Machine
	err := r.Try(ctx, "machine", retry(c.node, c.Limits.PauseDeadline), func(ctx context.Context) (err error) {
		if box, err = c.Store.Sandbox(ctx, id); err != nil {
			return storeError(err)
		}
		machine, err = c.resumeMachine(ctx, box, 0)
		return err
	})
	if err != nil {
		return landing{}, err
	}
	failpoint.Hit(failpoint.MachineResumed)
	switch {
	case machine.GetState() == nodev1.MachineState_MACHINE_STATE_PAUSED && machine.GetReason() == sandbox.ReasonPoolFull:
		return landing{}, &sandbox.Error{Code: sandbox.CodePoolFull, Message: "the sandbox cannot go on now",
			Cause: "the pool is nearly full: its writes would fail", Remedy: "free space; it goes on by itself then"}
	case machine.GetState() != nodev1.MachineState_MACHINE_STATE_RUNNING:
		return landing{}, notAs(machine, "running")
	}
	return landing{state: sandbox.StateRunning, machine: machine}, c.readySteps(ctx, r, box, c.Limits.ResumeDeadline)
}

func (c *Control) resumeMachine(ctx context.Context, box sandbox.Sandbox, timeout time.Duration) (*nodev1.Machine, error) {
	res, err := call(ctx, timeout, c.Deps.Node.ResumeMachine,
		&nodev1.ResumeMachineRequest{SandboxId: string(box.ID), Generation: box.Generation})
	return res.GetMachine(), err
}
