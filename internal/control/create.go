package control

import (
	"context"
	"fmt"
	"time"

	gatewayv1 "github.com/space-sandbox/space/api/proto/gateway/v1"
	nodev1 "github.com/space-sandbox/space/api/proto/node/v1"
	"github.com/space-sandbox/space/internal/failpoint"
	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
)

// CreateSandbox accepts a create.
func (c *Control) CreateSandbox(ctx context.Context, call Call, spec sandbox.Spec) (Accepted, error) {
	var box sandbox.Sandbox
	return c.accept(ctx, request{call: call, kind: kindCreate,
		find: func(ctx context.Context) (_ sandbox.ID, err error) {
			box, err = c.plan(ctx, spec, call.Principal)
			return box.ID, err
		},
		decide: func(ctx context.Context, tx store.Tx, op *operation.Operation, id sandbox.ID) (sandbox.Sandbox, error) {
			box.OperationID, box.Revision = op.ID, 1
			if err := c.admit(ctx, tx, op.ID, box, true); err != nil {
				return box, err
			}
			return box, tx.InsertSandbox(box)
		}})
}

// createTask makes the machine, waits for its guest and publishes it. What fails on the way is removed again.
func (c *Control) createTask(op sandbox.OperationID, id sandbox.ID) operation.Task {
	return operation.Task{ID: op,
		Body: func(ctx context.Context, r *operation.Run) operation.Outcome {
			box, err := c.Store.Sandbox(r.Outer(), id)
			if err != nil {
				return operation.Outcome{Err: storeError(err)}
			}
			if err := c.turns.wait(ctx, op, box.Owner); err != nil {
				return c.createFailed(r, box, err)
			}
			ctx, cancel := context.WithTimeoutCause(ctx, c.Limits.CreateDeadline, tooLong(c.Limits.CreateDeadline)) // from here on: waiting is no fault
			defer cancel()
			machine, err := c.createSteps(ctx, r, box)
			c.turns.leave(op)
			if err != nil {
				return c.createFailed(r, box, err)
			}
			return operation.Outcome{Commit: c.commitCreated(box.ID, machine)}
		}}
}

func (c *Control) createSteps(ctx context.Context, r *operation.Run, box sandbox.Sandbox) (machine *nodev1.Machine, err error) {
	err = r.Try(ctx, "machine", retry(c.node, 0), func(ctx context.Context) (err error) {
		machine, err = c.ensureMachine(ctx, r, box, false)
		return err
	})
	if err != nil {
		return nil, err
	}
	return machine, c.readySteps(ctx, r, box, c.Limits.ReadyDeadline)
}

// readySteps wait for the guest of a machine that runs, and open the way to it.
func (c *Control) readySteps(ctx context.Context, r *operation.Run, box sandbox.Sandbox, limit time.Duration) error {
	policy := retry(c.gateway, limit)
	policy.Overdue = notReady(limit)
	err := r.Try(ctx, "ready", policy, func(ctx context.Context) error { return c.awaitReady(ctx, r, box, limit) })
	if err != nil {
		return err
	}
	return r.Try(ctx, "publish", retry(c.gateway, 0), func(ctx context.Context) error { return c.publish(ctx, box) })
}

// ensureMachine asks node for a machine that runs; with keepDisk on the disk that an earlier one has left.
func (c *Control) ensureMachine(ctx context.Context, r *operation.Run, box sandbox.Sandbox, keepDisk bool) (*nodev1.Machine, error) {
	began := c.Now().UTC()
	res, err := call(ctx, 0, c.Deps.Node.EnsureMachine, &nodev1.EnsureMachineRequest{SandboxId: string(box.ID),
		Generation: box.Generation, TemplateDigest: box.Template.Digest, Driver: box.Driver, Vcpus: uint32(box.VCPUs),
		MemoryMib: uint32(box.MemoryMiB), DiskMib: uint32(box.DiskMiB), AgentToken: box.AgentToken, KeepDisk: keepDisk})
	if err != nil {
		return nil, err
	}
	failpoint.Hit(failpoint.MachineEnsured)
	for _, s := range res.Stages {
		began = recordStage(r, "machine/"+s.Name, began, s.Ms)
	}
	if res.Machine.GetState() == nodev1.MachineState_MACHINE_STATE_EXITED {
		return nil, exitError(res.Machine)
	}
	return res.Machine, nil
}

func (c *Control) awaitReady(ctx context.Context, r *operation.Run, box sandbox.Sandbox, limit time.Duration) error {
	began := c.Now().UTC()
	res, err := c.greet(ctx, box)
	if sandbox.CodeOf(err) == sandbox.CodeDeadline { // the gateway saw the deadline first
		return notReady(limit)
	}
	if err != nil {
		return err
	}
	failpoint.Hit(failpoint.GuestReady)
	for _, s := range res.Stages[:min(len(res.Stages), maxStages)] {
		began = recordStage(r, "ready/"+cut(s.Name, maxStageName), began, min(max(s.Ms, 0), maxStageMS))
	}
	return nil
}

// greet has the gateway wait for a guest's agent and give the guest its name and the time.
func (c *Control) greet(ctx context.Context, box sandbox.Sandbox) (*gatewayv1.AwaitReadyResponse, error) {
	hostname := box.Name
	if hostname == "" {
		hostname = string(box.ID)
	}
	return call(ctx, 0, c.Deps.Gateway.AwaitReady, &gatewayv1.AwaitReadyRequest{SandboxId: string(box.ID),
		Generation: box.Generation, AgentToken: box.AgentToken, Hostname: hostname})
}

// Bounds of what a guest may say about its own start.
const (
	maxStages    = 16
	maxStageName = 32
	maxStageMS   = 600_000
)

// recordStage adds a part that another process has timed, and returns when it ended.
func recordStage(r *operation.Run, name string, began time.Time, ms float64) time.Time {
	end := began.Add(time.Duration(ms * float64(time.Millisecond)))
	r.Record(operation.Step{Name: name, State: operation.Succeeded, StartedAt: began, EndedAt: end})
	return end
}

// commitCreated records that the sandbox is ready. A delete that was accepted meanwhile goes first: then the create
// counts as canceled, and the delete removes the machine.
func (c *Control) commitCreated(id sandbox.ID, machine *nodev1.Machine) operation.Commit {
	return func(ctx context.Context, op *operation.Operation) error {
		return c.Store.Update(ctx, func(tx store.Tx) error {
			box, err := tx.Sandbox(ctx, id)
			if err != nil {
				return err
			}
			if box.State != sandbox.StateCreating {
				op.State, op.Error = operation.Canceled, superseded()
				return tx.UpdateOperation(*op)
			}
			box.State, box.ReadyAt = sandbox.StateRunning, c.Now().UTC()
			if err := leave(ctx, tx, &box, *op); err != nil {
				return err
			}
			box.Driver, box.Isolation = machine.GetDriver(), machine.GetIsolation()
			if _, err := tx.UpdateSandbox(box); err != nil {
				return err
			}
			return tx.UpdateOperation(*op)
		})
	}
}

// createFailed removes what the create has made, however long that takes, and records the failure. When a delete is
// behind this create it leaves the removing to it.
func (c *Control) createFailed(r *operation.Run, box sandbox.Sandbox, cause error) operation.Outcome {
	out := operation.Outcome{Err: cause, Commit: c.commitCreateFailed(box.ID, sandbox.ReasonCreateFailed)}
	if sandbox.CodeOf(cause) == sandbox.CodeInterrupted {
		out.Commit = c.commitCreateFailed(box.ID, sandbox.ReasonInterrupted)
	}
	if r.Outer().Err() != nil || r.Operation().State == operation.Queued {
		return out // stopping, or nothing was begun
	}
	if now, err := c.Store.Sandbox(r.Outer(), box.ID); err == nil && now.State == sandbox.StateDeleting {
		return out
	}
	if err := r.Step(r.Outer(), "cleanup", func(ctx context.Context) error {
		c.unpublish(ctx, box.ID, sandbox.ReasonCreateFailed)
		return c.removeMachine(ctx, box.ID)
	}); err != nil {
		out.Err = err // only when control is stopping
	}
	return out
}

func (c *Control) commitCreateFailed(id sandbox.ID, reason string) operation.Commit {
	return func(ctx context.Context, op *operation.Operation) error {
		return c.Store.Update(ctx, func(tx store.Tx) error {
			box, err := tx.Sandbox(ctx, id)
			if err != nil {
				return err
			}
			if box.State == sandbox.StateCreating {
				box.State, box.Reason = sandbox.StateFailed, reason
				if err := leave(ctx, tx, &box, *op); err != nil {
					return err
				}
				if op.Error != nil {
					box.Detail = op.Error.Message
					if op.Error.Cause != "" {
						box.Detail += ": " + op.Error.Cause
					}
				}
				if _, err := tx.UpdateSandbox(box); err != nil {
					return err
				}
			}
			return tx.UpdateOperation(*op)
		})
	}
}

func tooLong(limit time.Duration) *sandbox.Error {
	return &sandbox.Error{Code: sandbox.CodeDeadline, Message: "the create did not end within its deadline",
		Cause: fmt.Sprintf("it had %s from its turn on", limit), Remedy: "look at its steps for where the time went"}
}

func notReady(limit time.Duration) *sandbox.Error {
	return &sandbox.Error{Code: sandbox.CodeGuestNotReady, Message: "the guest did not answer within its deadline",
		Cause:  "its agent was not reachable for " + limit.String(),
		Remedy: "try again; if it happens again, see space doctor and the template's content"}
}

// exitError is the failure of an operation whose machine ended.
func exitError(m *nodev1.Machine) *sandbox.Error {
	cause := m.GetReason()
	if m.GetDetail() != "" {
		cause += ": " + m.GetDetail()
	}
	return &sandbox.Error{Code: sandbox.CodeVMMFailed, Message: "the machine ended before its guest was ready",
		Cause: cause, Remedy: "try again with more memory_mib, or see space doctor"}
}
