package control

import (
	"context"
	"errors"

	nodev1 "github.com/space-sandbox/space/api/proto/node/v1"
	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
)

// PauseSandbox accepts a pause: the machine's vCPUs stop, its memory stays.
func (c *Control) PauseSandbox(ctx context.Context, call Call, ref string) (Accepted, error) {
	return c.acceptVerb(ctx, call, ref, sandbox.VerbPause)
}

// ResumeSandbox accepts a resume of what was paused.
func (c *Control) ResumeSandbox(ctx context.Context, call Call, ref string) (Accepted, error) {
	return c.acceptVerb(ctx, call, ref, sandbox.VerbResume)
}

// RecoverSandbox accepts a recovery of what has failed: a new machine boots on the disk that the old one has left.
func (c *Control) RecoverSandbox(ctx context.Context, call Call, ref string) (Accepted, error) {
	if c.node.check() == nil { // else it may still be one that has to wait
		if err := c.lookAtPool(ctx); err != nil {
			return Accepted{}, err
		}
	}
	return c.acceptVerb(ctx, call, ref, sandbox.VerbRecover)
}

// acceptVerb accepts a verb of the table. Where nothing is under way it is judged at once, else when its turn comes.
func (c *Control) acceptVerb(ctx context.Context, call Call, ref string, verb sandbox.Verb) (Accepted, error) {
	return c.accept(ctx, request{call: call, kind: string(verb), find: c.finder(ref),
		decide: func(ctx context.Context, tx store.Tx, op *operation.Operation, id sandbox.ID) (sandbox.Sandbox, error) {
			box, err := find(ctx, tx, string(id))
			if err != nil {
				return box, err
			}
			if err := checkBusy(call, box); err != nil {
				return box, err
			}
			rule := verb.On(box).Rule
			if box.OperationID != "" && box.State != sandbox.StateDeleting {
				rule = sandbox.Waits
			}
			if rule != sandbox.Waits {
				if err := checkState(call.IfState, box); err != nil {
					return box, err
				}
			}
			switch rule {
			case sandbox.Already:
				op.Succeed(c.Now())
				return box, nil
			case sandbox.Moves:
				if err := c.room(ctx, tx, verb, op.ID, box); err != nil {
					return box, err
				}
				box.OperationID = op.ID
			case sandbox.Waits:
				if verb == sandbox.VerbRecover && c.draining.Load() {
					return box, drained()
				}
			default:
				return box, box.Refuse(verb)
			}
			box.DesiredState = verb.Way().End
			return tx.UpdateSandbox(box)
		}})
}

// room refuses a recovery for which the host has no room: what has failed holds none.
func (c *Control) room(ctx context.Context, tx store.Tx, verb sandbox.Verb, op sandbox.OperationID, box sandbox.Sandbox) error {
	if verb != sandbox.VerbRecover {
		return nil
	}
	if err := c.node.check(); err != nil {
		return err
	}
	return c.admit(ctx, tx, op, box, false)
}

// roomNow is room when the turn of a recovery has come. One that was accepted while its sandbox was failed has what it
// needs; one that was accepted behind something else has to find it now.
func (c *Control) roomNow(ctx context.Context, tx store.Tx, op sandbox.OperationID, box sandbox.Sandbox) error {
	if c.budget.has(op) {
		return nil
	}
	if err := c.node.check(); err != nil {
		return err
	}
	return c.reserve(ctx, tx, op, box, false)
}

// transitionTask does a pause, resume or recover.
func (c *Control) transitionTask(op operation.Operation, id sandbox.ID) operation.Task {
	verb := sandbox.Verb(op.Kind)
	return operation.Task{ID: op.ID, Claim: c.claim(id, verb), Cancelable: true,
		Body: func(ctx context.Context, r *operation.Run) operation.Outcome {
			var place landing
			var err error
			switch verb {
			case sandbox.VerbPause:
				place, err = c.pause(ctx, r, id)
			case sandbox.VerbResume:
				place, err = c.resume(ctx, r, id)
			case sandbox.VerbRecover:
				place, err = c.recover(ctx, r, id)
			default:
				err = sandbox.Errorf(sandbox.CodeInternal, "an operation of unknown kind %q", verb)
			}
			switch {
			case r.Over(), err != nil && r.Outer().Err() != nil:
				return operation.Outcome{Err: err} // when stopping, the next process goes on
			case !r.Claimed():
				return operation.Outcome{Err: err, Commit: c.commitLeft(id)}
			case err != nil:
				place = c.landed(r, id, verb)
			}
			return operation.Outcome{Err: err, Commit: c.commitLanded(id, verb, place)}
		}}
}

// claim begins a transition in the record: the state moves, or the operation ends because the verb is not legal any
// more, or has nothing to do. Of one that a restart cut off, the state has moved already.
func (c *Control) claim(id sandbox.ID, verb sandbox.Verb) operation.Commit {
	return func(ctx context.Context, op *operation.Operation) error {
		fresh := *op
		err := c.Store.Update(ctx, func(tx store.Tx) error {
			*op = fresh // the store may call this again
			box, err := tx.Sandbox(ctx, id)
			if isMissing(err) {
				op.Fail(noSandbox(string(id)), c.Now())
				return tx.UpdateOperation(*op)
			}
			if err != nil {
				return err
			}
			if box.State == verb.Way().Via && box.OperationID == op.ID {
				return tx.UpdateOperation(*op)
			}
			if err := c.begin(ctx, tx, verb, &box, op); err != nil {
				refused, ok := errors.AsType[*sandbox.Error](err)
				if !ok || transient(err) { // accepted is accepted: a part that starts just now is waited for
					return err
				}
				op.Fail(refused, c.Now())
			}
			if op.State.Ended() {
				return left(ctx, tx, box, *op)
			}
			if _, err := tx.UpdateSandbox(box); err != nil {
				return err
			}
			return tx.UpdateOperation(*op)
		})
		if err == nil {
			c.budget.recorded(op.ID)
		}
		return err
	}
}

// begin judges a verb by the table, and moves box.
func (c *Control) begin(ctx context.Context, tx store.Tx, verb sandbox.Verb, box *sandbox.Sandbox, op *operation.Operation) error {
	if box.State == sandbox.StateDeleting || !box.Live() {
		return superseded()
	}
	asked, err := wishOf(*op)
	if err != nil {
		return err
	}
	if err := checkState(asked.IfState, *box); err != nil {
		return err
	}
	switch verb.On(*box).Rule {
	case sandbox.Already:
		op.Succeed(c.Now())
		return nil
	case sandbox.Moves:
	default:
		return box.Refuse(verb)
	}
	if verb == sandbox.VerbRecover {
		if err := c.roomNow(ctx, tx, op.ID, *box); err != nil {
			return err
		}
		if _, err := c.loseCommands(ctx, tx, box.ID, reasonColdBoot); err != nil { // none is left, normally
			return err
		}
		box.Generation++
		box.AgentToken = newAgentToken()
	}
	box.State, box.DesiredState, box.OperationID = verb.Way().Via, verb.Way().End, op.ID
	return nil
}

// leave takes an operation that has ended out of its sandbox: the next one that was accepted takes its place. With none
// left, the sandbox is wanted to be what it is.
func leave(ctx context.Context, tx store.Tx, box *sandbox.Sandbox, op operation.Operation) error {
	open, err := tx.OpenOperations(ctx, resourceOf(box.ID))
	if err != nil {
		return err
	}
	box.OperationID = ""
	for _, other := range open {
		if other.ID != op.ID {
			box.OperationID = other.ID
			return nil
		}
	}
	switch {
	case box.State == sandbox.StateRunning, box.State == sandbox.StatePaused && box.Reason == sandbox.ReasonPoolFull:
		box.DesiredState = sandbox.StateRunning
	case box.State == sandbox.StatePaused:
		box.DesiredState = sandbox.StatePaused
	}
	return nil
}

// left writes an operation that has ended without an effect.
func left(ctx context.Context, tx store.Tx, box sandbox.Sandbox, op operation.Operation) error {
	if box.State != sandbox.StateDeleting && box.Live() { // a delete has the sandbox's place for itself
		if err := leave(ctx, tx, &box, op); err != nil {
			return err
		}
		if _, err := tx.UpdateSandbox(box); err != nil {
			return err
		}
	}
	return tx.UpdateOperation(op)
}

func (c *Control) commitLeft(id sandbox.ID) operation.Commit {
	return func(ctx context.Context, op *operation.Operation) error {
		return c.Store.Update(ctx, func(tx store.Tx) error {
			box, err := tx.Sandbox(ctx, id)
			if err != nil {
				return err
			}
			return left(ctx, tx, box, *op)
		})
	}
}

// landing is where a transition has left a sandbox.
type landing struct {
	state          sandbox.State
	reason, detail string
	machine        *nodev1.Machine // nil when nothing new is known of it
}

// commitLanded ends a transition. A delete that was accepted meanwhile goes first: then the transition counts as
// canceled, and the delete does the rest.
func (c *Control) commitLanded(id sandbox.ID, verb sandbox.Verb, place landing) operation.Commit {
	return func(ctx context.Context, op *operation.Operation) error {
		fresh := *op
		var lost []sandbox.Command
		err := c.Store.Update(ctx, func(tx store.Tx) error {
			*op, lost = fresh, nil // the store may call this again
			box, err := tx.Sandbox(ctx, id)
			if err != nil {
				return err
			}
			if box.State != verb.Way().Via {
				op.Fail(superseded(), c.Now())
				return tx.UpdateOperation(*op)
			}
			if lost, err = c.land(ctx, tx, &box, place); err != nil {
				return err
			}
			if verb == sandbox.VerbRecover && place.state == sandbox.StateRunning {
				box.ReadyAt = c.Now().UTC()
			}
			if err := leave(ctx, tx, &box, *op); err != nil {
				return err
			}
			if _, err := tx.UpdateSandbox(box); err != nil {
				return err
			}
			return tx.UpdateOperation(*op)
		})
		if err == nil {
			c.wake(lost)
		}
		return err
	}
}

// land makes box what place says; what ran in a machine that is gone is lost.
func (c *Control) land(ctx context.Context, tx store.Tx, box *sandbox.Sandbox, place landing) ([]sandbox.Command, error) {
	box.State, box.Reason, box.Detail = place.state, place.reason, place.detail
	if m := place.machine; m != nil && m.GetDriver() != "" {
		box.Driver, box.Isolation = m.GetDriver(), m.GetIsolation()
	}
	if place.state != sandbox.StateFailed {
		return nil, nil
	}
	return c.loseCommands(ctx, tx, box.ID, lostReason(place.reason))
}
