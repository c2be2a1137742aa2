package control

import (
	"context"
	"errors"
	"time"

	gatewayv1 "github.com/space-sandbox/space/api/proto/gateway/v1"
	nodev1 "github.com/space-sandbox/space/api/proto/node/v1"
	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
	"github.com/space-sandbox/space/internal/telemetry"
)

// CreateSandbox accepts a create: sandbox, operation and Idempotency-Key become durable in one commit, then the answer
// goes out while the supervisor makes the machine.
func (c *Control) CreateSandbox(ctx context.Context, call Call, spec sandbox.Spec) (Accepted, error) {
	if acc, found, err := c.replayed(ctx, call); found || err != nil {
		return acc, err
	}
	box, err := c.plan(ctx, spec, call.Principal)
	if err != nil {
		return Accepted{}, err
	}
	resource := operation.Resource{Type: resourceSandbox, ID: string(box.ID)}
	op, err := c.engine.Submit(ctx, kindCreate, resource, func(ctx context.Context, op *operation.Operation) error {
		box.OperationID = op.ID
		return c.Store.Update(ctx, func(tx store.Tx) error {
			if err := c.remember(ctx, tx, call, string(op.ID)); err != nil {
				return err
			}
			if err := c.admit(ctx, tx, box); err != nil {
				return err
			}
			if err := tx.InsertSandbox(box); err != nil {
				return err
			}
			return tx.InsertOperation(*op)
		})
	})
	if errors.Is(err, errReplay) { // a call with the same key came in at the same moment
		acc, _, err := c.replayed(ctx, call)
		return acc, err
	}
	if err != nil {
		return Accepted{}, storeError(err)
	}
	box.Revision = 1
	c.boxes.do(string(box.ID), func() { c.run(telemetry.TraceOf(ctx), c.createTask(op.ID, box.ID)) })
	return Accepted{Operation: op, Sandbox: box}, nil
}

// createTask makes the machine, waits for its guest and publishes it. What fails on the way is removed again.
func (c *Control) createTask(op sandbox.OperationID, id sandbox.ID) operation.Task {
	return operation.Task{ID: op, Deadline: c.Limits.CreateDeadline,
		Body: func(ctx context.Context, r *operation.Run) operation.Outcome {
			box, err := c.Store.Sandbox(r.Outer(), id)
			if err != nil {
				return operation.Outcome{Err: storeError(err)}
			}
			if err := c.slots.Acquire(ctx, 1); err != nil {
				return c.createFailed(r, box, context.Cause(ctx))
			}
			machine, err := c.createSteps(ctx, r, box)
			c.slots.Release(1)
			if err != nil {
				return c.createFailed(r, box, err)
			}
			return operation.Outcome{Commit: c.commitCreated(box.ID, machine)}
		}}
}

func (c *Control) createSteps(ctx context.Context, r *operation.Run, box sandbox.Sandbox) (machine *nodev1.Machine, err error) {
	err = r.Step(ctx, "machine", func(ctx context.Context) error {
		return c.insist(ctx, c.node, "EnsureMachine", transient, func(ctx context.Context) (err error) {
			machine, err = c.ensureMachine(ctx, r, box)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	err = r.Step(ctx, "ready", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeoutCause(ctx, c.Limits.ReadyDeadline, notReady(c.Limits.ReadyDeadline))
		defer cancel()
		return c.insist(ctx, c.gateway, "AwaitReady", transient, func(ctx context.Context) error {
			return c.awaitReady(ctx, r, box)
		})
	})
	if err != nil {
		return nil, err
	}
	return machine, r.Step(ctx, "publish", func(ctx context.Context) error { return c.publish(ctx, box) })
}

func (c *Control) ensureMachine(ctx context.Context, r *operation.Run, box sandbox.Sandbox) (*nodev1.Machine, error) {
	began := c.Now().UTC()
	res, err := call(ctx, 0, c.Deps.Node.EnsureMachine, &nodev1.EnsureMachineRequest{SandboxId: string(box.ID),
		Generation: box.Generation, TemplateDigest: box.Template.Digest, Driver: box.Driver, Vcpus: uint32(box.VCPUs),
		MemoryMib: uint32(box.MemoryMiB), DiskMib: uint32(box.DiskMiB), AgentToken: box.AgentToken})
	if err != nil {
		return nil, err
	}
	for _, s := range res.Stages {
		began = recordStage(r, "machine/"+s.Name, began, s.Ms)
	}
	if res.Machine.GetState() == nodev1.MachineState_MACHINE_STATE_EXITED {
		return nil, exitError(res.Machine)
	}
	return res.Machine, nil
}

func (c *Control) awaitReady(ctx context.Context, r *operation.Run, box sandbox.Sandbox) error {
	began := c.Now().UTC()
	hostname := box.Name
	if hostname == "" {
		hostname = string(box.ID)
	}
	res, err := call(ctx, 0, c.Deps.Gateway.AwaitReady, &gatewayv1.AwaitReadyRequest{SandboxId: string(box.ID),
		Generation: box.Generation, AgentToken: box.AgentToken, Hostname: hostname})
	if sandbox.CodeOf(err) == sandbox.CodeDeadline { // the gateway saw the deadline first
		return notReady(c.Limits.ReadyDeadline)
	}
	if err != nil {
		return err
	}
	for _, s := range res.Stages[:min(len(res.Stages), maxStages)] {
		began = recordStage(r, "ready/"+cut(s.Name, maxStageName), began, min(max(s.Ms, 0), maxStageMS))
	}
	return nil
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
			box.State, box.ReadyAt, box.OperationID = sandbox.StateRunning, c.Now().UTC(), ""
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
				box.State, box.Reason, box.OperationID = sandbox.StateFailed, reason, ""
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

func notReady(limit time.Duration) *sandbox.Error {
	return &sandbox.Error{Code: sandbox.CodeGuestNotReady, Message: "the guest did not answer within its deadline",
		Cause:  "its agent was not reachable for " + limit.String(),
		Remedy: "try again; if it happens again, see space doctor and the template's content"}
}

// exitError is the failure of a create whose machine ended.
func exitError(m *nodev1.Machine) *sandbox.Error {
	cause := m.GetReason()
	if m.GetDetail() != "" {
		cause += ": " + m.GetDetail()
	}
	return &sandbox.Error{Code: sandbox.CodeVMMFailed, Message: "the machine ended before its guest was ready",
		Cause: cause, Remedy: "try again with more memory_mib, or see space doctor"}
}
