package control

import (
	"context"
	"errors"
	"time"

	nodev1 "github.com/space-sandbox/space/api/proto/node/v1"
	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
)

// Kinds of drift: differences between record and node that are put right, and counted.
const (
	driftMissing  = "machine_missing" // the record has a machine that node does not know
	driftBehind   = "record_behind"   // the record thinks a machine lost that runs
	driftStray    = "stray_machine"   // node has a machine that no sandbox stands for
	driftStanding = "stands_unasked"  // a machine stands still that nobody has paused
	driftRunning  = "runs_unasked"    // a machine runs that was paused
)

const unknownMachine = "node does not know the machine"

// lookAt asks node what a sandbox's machine is now; nil: there is none.
func (c *Control) lookAt(ctx context.Context, id sandbox.ID) (*nodev1.Machine, error) {
	res, err := call(ctx, c.Limits.CallTimeout, c.Deps.Node.ListMachines, &nodev1.ListMachinesRequest{})
	if err != nil {
		return nil, err
	}
	for _, m := range res.GetMachines() {
		if m.GetSandboxId() == string(id) {
			return m, nil
		}
	}
	return nil, nil
}

// placeOf is where a sandbox is whose machine is m.
func placeOf(m *nodev1.Machine) landing {
	switch m.GetState() {
	case nodev1.MachineState_MACHINE_STATE_RUNNING:
		return landing{state: sandbox.StateRunning, machine: m}
	case nodev1.MachineState_MACHINE_STATE_PAUSED:
		return landing{state: sandbox.StatePaused, reason: heldReason(m), machine: m}
	case nodev1.MachineState_MACHINE_STATE_EXITED:
		return landing{state: sandbox.StateFailed, reason: exitReason(m), detail: m.GetDetail(), machine: m}
	}
	return landing{state: sandbox.StateFailed, reason: sandbox.ReasonVMMExit, detail: unknownMachine}
}

// heldReason is one of the reasons that the record of a paused sandbox may have.
func heldReason(m *nodev1.Machine) string {
	if m.GetReason() == sandbox.ReasonPoolFull {
		return sandbox.ReasonPoolFull
	}
	return ""
}

// exitReason is one of the reasons that the record of a failed sandbox may have.
func exitReason(m *nodev1.Machine) string {
	switch r := m.GetReason(); r {
	case sandbox.ReasonVMMExit, sandbox.ReasonOOM, sandbox.ReasonGuestReboot, sandbox.ReasonHostRestarted, sandbox.ReasonGuestNotReady:
		return r
	}
	return sandbox.ReasonVMMExit
}

// landed finds where a transition that failed has left its sandbox: in the state that its machine is in. When node does
// not say, that is where it came from, until node does.
func (c *Control) landed(r *operation.Run, id sandbox.ID, verb sandbox.Verb) landing {
	ctx := r.Outer()
	box, err := c.boxOf(ctx, id)
	if err != nil || box.State != verb.Way().Via {
		return landing{} // stopping, or a delete has it
	}
	m, err := c.lookAt(ctx, id)
	if err == nil && verb == sandbox.VerbRecover {
		m, err = c.giveUpMachine(ctx, box, m)
	}
	place := placeOf(m)
	switch {
	case err != nil:
		place = cameFrom(verb, box)
	case m == nil && verb == sandbox.VerbRecover: // there was none before
		place = cameFrom(verb, box)
	}
	c.show(ctx, box, place)
	if err == nil {
		c.tellWish(ctx, box, verb, place)
	}
	return place
}

// giveUpMachine ends what a recovery has booted when the recovery has failed: its guest does not answer, and while it ran
// the sandbox could not be recovered once more. The disk stays. It returns what node has then.
func (c *Control) giveUpMachine(ctx context.Context, box sandbox.Sandbox, m *nodev1.Machine) (*nodev1.Machine, error) {
	if m == nil || m.GetGeneration() != box.Generation || m.GetState() == nodev1.MachineState_MACHINE_STATE_EXITED {
		return m, nil
	}
	_, err := call(ctx, c.Limits.DeleteTimeout, c.Deps.Node.DeleteMachine,
		&nodev1.DeleteMachineRequest{SandboxId: string(box.ID), EndGeneration: box.Generation})
	if err != nil {
		c.Logger.WarnContext(ctx, "a machine whose guest does not answer could not be ended", "sandbox_id", box.ID, "error", err)
	}
	return c.lookAt(ctx, box.ID)
}

// cameFrom is where a sandbox was before a verb moved it. Its reason is still in the record.
func cameFrom(verb sandbox.Verb, box sandbox.Sandbox) landing {
	switch {
	case verb == sandbox.VerbRecover:
		return landing{state: sandbox.StateFailed, reason: box.Reason, detail: box.Detail}
	case verb == sandbox.VerbResume, box.Reason == sandbox.ReasonPoolFull:
		return landing{state: sandbox.StatePaused, reason: box.Reason}
	}
	return landing{state: sandbox.StateRunning}
}

// show makes the sandbox's route what it must be at place.
func (c *Control) show(ctx context.Context, box sandbox.Sandbox, place landing) {
	if place.state == sandbox.StateFailed {
		c.unpublish(ctx, box.ID, place.reason)
		return
	}
	box.State, box.Reason = place.state, place.reason
	c.reroute(ctx, box, heldOf(box))
}

// tellWish takes back at node what a failed verb wanted: node would do it later otherwise. If that cannot be told now,
// node's next event shows the difference.
func (c *Control) tellWish(ctx context.Context, box sandbox.Sandbox, verb sandbox.Verb, place landing) {
	var err error
	switch {
	case verb == sandbox.VerbPause && place.state == sandbox.StateRunning:
		_, err = c.resumeMachine(ctx, box, c.Limits.CallTimeout)
	case verb == sandbox.VerbResume && place.state == sandbox.StatePaused && place.reason == "":
		_, err = c.pauseMachine(ctx, box, c.Limits.CallTimeout)
	}
	if err != nil {
		c.Logger.WarnContext(ctx, "node could not be told that a verb has failed", "verb", verb, "sandbox_id", box.ID, "error", err)
	}
}

// boxOf reads a sandbox, again and again while the store does not answer.
func (c *Control) boxOf(ctx context.Context, id sandbox.ID) (box sandbox.Sandbox, err error) {
	again := func(err error) bool { return !isMissing(err) && !errors.Is(err, store.ErrClosed) }
	err = c.insist(ctx, newLink("store"), "record of a sandbox", again, func(ctx context.Context) (err error) {
		box, err = c.Store.Sandbox(ctx, id)
		return err
	})
	return box, err
}

// observe compares a sandbox's record with what node has told of its machine (nil: it is gone), and puts the record or
// the machine right. It runs in the sandbox's lane, where nothing is under way; what it was told may be old by then, so
// a difference counts only when node says it again.
func (c *Control) observe(id sandbox.ID, told *nodev1.Machine) {
	box, err := c.boxOf(c.base, id)
	if err != nil && !isMissing(err) {
		return // control is stopping
	}
	if isMissing(err) || !box.Live() || box.State == sandbox.StateFailed && !box.KeepsDisk() {
		if told != nil {
			c.machineStray(id)
		}
		return
	}
	if agrees(box, told) {
		return
	}
	m, err := c.lookAt(c.base, id)
	if err != nil || agrees(box, m) { // without an answer the watch ends too, and all is told again
		return
	}
	c.correct(box, m)
}

// agrees reports whether a record and a machine say the same.
func agrees(box sandbox.Sandbox, m *nodev1.Machine) bool {
	if m != nil && m.GetGeneration() != box.Generation {
		m = nil // of a machine that the record has left behind
	}
	switch box.State {
	case sandbox.StateRunning:
		return m.GetState() == nodev1.MachineState_MACHINE_STATE_RUNNING
	case sandbox.StatePaused:
		return m.GetState() == nodev1.MachineState_MACHINE_STATE_PAUSED && heldReason(m) == box.Reason
	case sandbox.StateFailed:
		return m == nil || m.GetState() == nodev1.MachineState_MACHINE_STATE_EXITED
	}
	return true // an operation sees to it
}

// correct deals with a machine that is not what the record says. What has ended has ended; what stands still or runs
// against the wish is told the wish; what node does of itself the record takes over.
func (c *Control) correct(box sandbox.Sandbox, m *nodev1.Machine) {
	if m != nil && m.GetGeneration() != box.Generation {
		m = nil
	}
	place := placeOf(m)
	log := c.Logger.With("sandbox_id", box.ID, "state", box.State, "reason", box.Reason, "machine", m.GetState(), "why", m.GetReason())
	switch {
	case place.state == sandbox.StateFailed:
		if m == nil {
			c.metrics.drift.WithLabelValues(driftMissing).Inc()
		}
		log.Warn("a machine ended", "detail", place.detail)
		c.metrics.exits.WithLabelValues(place.reason).Inc()
		c.take(box, place)
	case box.State == sandbox.StateFailed:
		log.Warn("a machine that was thought lost is there")
		c.metrics.drift.WithLabelValues(driftBehind).Inc()
		c.take(box, place)
	case place.state == sandbox.StatePaused && box.DesiredState != sandbox.StatePaused && place.reason == sandbox.ReasonPoolFull:
		log.Warn("node holds a machine: the pool is nearly full")
		c.take(box, place)
	case place.state == sandbox.StateRunning && box.Reason == sandbox.ReasonPoolFull:
		log.Info("node lets a machine go on")
		c.take(box, place)
	case box.State == sandbox.StatePaused && box.Reason == "":
		log.Warn("a machine that was paused is not so of node's own; telling node")
		c.metrics.drift.WithLabelValues(driftRunning).Inc()
		c.align(box, c.pauseMachine)
	default:
		log.Warn("a machine stands still that nobody has paused; telling node")
		c.metrics.drift.WithLabelValues(driftStanding).Inc()
		c.align(box, c.resumeMachine)
	}
}

// greetPatience is short: the gateway sets clocks by itself too, and a delete may be waiting.
const greetPatience = 5 * time.Second

// take makes the record say what node says.
func (c *Control) take(box sandbox.Sandbox, place landing) {
	if place.state == sandbox.StateRunning && box.State == sandbox.StatePaused { // its clock stood still
		ctx, cancel := context.WithTimeout(c.base, greetPatience)
		if _, err := c.greet(ctx, box); err != nil {
			c.Logger.Warn("the guest of a resumed machine does not answer", "sandbox_id", box.ID, "error", err)
		}
		cancel()
	}
	c.show(c.base, box, place)
	var lost []sandbox.Command
	err := c.insist(c.base, newLink("store"), "record of a machine", anyError, func(ctx context.Context) error {
		return c.Store.Update(ctx, func(tx store.Tx) error {
			now, err := tx.Sandbox(ctx, box.ID)
			if err != nil {
				return err
			}
			if lost = nil; now.State != box.State { // a delete may have been accepted
				return nil
			}
			if lost, err = c.land(ctx, tx, &now, place); err != nil {
				return err
			}
			if box.State == sandbox.StateFailed && place.state == sandbox.StateRunning {
				now.DesiredState = sandbox.StateRunning // whatever it was to be before it was lost
			}
			_, err = tx.UpdateSandbox(now)
			return err
		})
	})
	if err == nil {
		c.wake(lost)
	}
}

// align tells node what is wanted of a machine. Should it not be possible, node's next event brings it up again.
func (c *Control) align(box sandbox.Sandbox, tell func(context.Context, sandbox.Sandbox, time.Duration) (*nodev1.Machine, error)) {
	if _, err := tell(c.base, box, c.Limits.CallTimeout); err != nil && c.base.Err() == nil {
		c.Logger.Warn("node could not be told what is wanted", "sandbox_id", box.ID, "error", err)
	}
}

// machineStray removes a machine that no sandbox stands for.
func (c *Control) machineStray(id sandbox.ID) {
	c.Logger.Warn("removing a machine that the record does not know", "sandbox_id", id)
	c.metrics.drift.WithLabelValues(driftStray).Inc()
	if err := c.removeMachine(c.base, id); err == nil {
		c.Logger.Info("removed a stray machine", "sandbox_id", id)
	}
}

// lostReason is what a lost command says of its machine's end.
func lostReason(reason string) string {
	if reason == sandbox.ReasonHostRestarted {
		return reason
	}
	return "vm_exit"
}

// loseCommands marks every open session of a sandbox lost.
func (c *Control) loseCommands(ctx context.Context, tx store.Tx, id sandbox.ID, reason string) ([]sandbox.Command, error) {
	open, err := tx.OpenCommands(ctx, id)
	if err != nil {
		return nil, err
	}
	for _, cmd := range open {
		cmd.State, cmd.Reason, cmd.EndedAt = sandbox.CommandLost, reason, c.Now().UTC()
		if _, err := tx.UpdateCommand(cmd); err != nil {
			return nil, err
		}
	}
	return open, nil
}
