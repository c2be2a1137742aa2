package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	nodev1 "github.com/space-sandbox/space/api/proto/node/v1"
	"github.com/space-sandbox/space/internal/failpoint"
	"github.com/space-sandbox/space/internal/node/ledger"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/vmm"
)

// recoveries is how many machines are adopted or cleaned up side by side at start.
const recoveries = 8

// recover makes memory agree with what exists: see the package comment.
func (n *Node) recover(ctx context.Context) error {
	all, err := n.records.load()
	if err != nil {
		return err
	}
	if slices.ContainsFunc(all, func(r *record) bool { return r.Held != "" }) {
		n.reserve.stayLow()
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(recoveries)
	for _, rec := range all {
		n.uids.mark(rec.UID, rec.ID)
		e, err := n.acquire(ctx, rec.ID)
		if err != nil {
			return err
		}
		e.rec = rec
		g.Go(func() error {
			defer n.release(rec.ID, e)
			return n.recoverOne(gctx, e)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return n.reap(ctx)
}

// recoverOne brings one record to a definite state. The caller holds the entry.
func (n *Node) recoverOne(ctx context.Context, e *entry) error {
	rec := e.rec
	log := n.deps.Logger.With("sandbox_id", rec.ID)
	switch rec.Phase {
	case phaseRunning:
		return n.adopt(ctx, e)
	case phaseExited:
		n.hub.set(rec.ID, toProto(rec, e.vcpus))
		return nil
	}
	failpoint.Hit(failpoint.HalfMadeFound)
	log.Info("cleaning up a machine that a crash left half done", "phase", rec.Phase)
	n.takeOver(ctx, e)
	clean := n.dismantle
	if rec.Phase == phaseMaking {
		clean = n.abandon
	}
	if err := clean(ctx, e); err != nil {
		log.Error("clean-up failed; it is tried again", "error", err)
		n.removeLater(rec.ID, e)
		n.hub.set(rec.ID, toProto(e.rec, e.vcpus))
	}
	return nil
}

// takeOver finds the process of a record that is to be removed, so that it is ended by its pidfd. One that was
// started but not recorded yet is ended with its control group.
func (n *Node) takeOver(ctx context.Context, e *entry) {
	b, ok := backend(n.deps.Backends, e.rec.Driver)
	if !ok || e.rec.Machine == nil {
		return
	}
	if m, err := b.Driver.Adopt(ctx, *e.rec.Machine); err == nil {
		e.machine = m
	}
}

// adopt takes over a machine that an earlier node booted, or records how it ended.
func (n *Node) adopt(ctx context.Context, e *entry) error {
	rec := e.rec
	log := n.deps.Logger.With("sandbox_id", rec.ID)
	b, ok := backend(n.deps.Backends, rec.Driver)
	if !ok {
		return &sandbox.Error{Code: sandbox.CodeDriverUnavailable, Message: "a machine of this node needs a driver that is not enabled",
			Cause: fmt.Sprintf("sandbox %s runs under %q", rec.ID, rec.Driver), Remedy: "start space up with that driver, or remove it with space down --all"}
	}
	if rec.BootID != n.deps.BootID {
		log.Warn("machine did not survive the restart of the host")
		n.hasEnded(ctx, e, vmm.Exit{Reason: sandbox.ReasonHostRestarted, Detail: "the host booted since this machine ran"})
		return nil
	}
	if rec.Machine == nil {
		return fmt.Errorf("record of %s is %s without a machine", rec.ID, rec.Phase)
	}
	m, err := b.Driver.Adopt(ctx, *rec.Machine)
	if errors.Is(err, vmm.ErrGone) {
		failpoint.Hit(failpoint.ExitFound)
		log.Warn("machine ended while node was away")
		n.hasEnded(ctx, e, vmm.Exit{Reason: sandbox.ReasonVMMExit, Detail: "it ended while node was not running"})
		return nil
	}
	if err != nil {
		return fmt.Errorf("adopt %s: %w", rec.ID, err)
	}
	e.machine = m
	if e.box, err = b.Network.Open(ctx, rec.ID); err != nil {
		e.box = nil
		if sandbox.CodeOf(err) != sandbox.CodeNotFound {
			return fmt.Errorf("network of %s: %w", rec.ID, err)
		}
		// Nobody can reach it any more, and it must not keep node from the others.
		log.Error("the network of a machine is gone; it is ended, and its disk is kept", "error", err)
		return n.endKept(ctx, e, vmm.Exit{Reason: sandbox.ReasonVMMExit, Detail: "its network had been removed from the host, and it was ended"})
	}
	failpoint.Hit(failpoint.MachineAdopted)
	log.Info("adopted a running machine", "pid", rec.Machine.Process.PID)
	n.agree(ctx, e)
	n.watch(e, rec, m)
	return nil
}

// hasEnded is recordExit for an adoption: a record that cannot be written now is written by the next node, and does not
// keep this one from the other machines. The caller holds the entry.
func (n *Node) hasEnded(ctx context.Context, e *entry, exit vmm.Exit) {
	if err := n.recordExit(ctx, e, exit); err != nil {
		n.deps.Logger.Error("cannot record the end of a machine", "sandbox_id", e.rec.ID, "error", err)
	}
}

// agreeTime bounds how long the start of node waits for one VMM that does not answer.
const agreeTime = 2 * time.Second

// agree makes an adopted machine do what its record wants: the one before may have died between the two, or not have been
// obeyed. Until a machine that does not answer does, node says what is wanted. The caller holds the entry.
func (n *Node) agree(ctx context.Context, e *entry) {
	n.hold(e)
	e.vcpus = vcpus{still: e.rec.still()}
	limit := time.AfterFunc(agreeTime, e.interrupt)
	defer limit.Stop()
	if err := n.obey(ctx, e); err != nil && !errors.Is(err, vmm.ErrGone) {
		n.deps.Logger.Warn("an adopted machine does not obey; node goes on trying", "sandbox_id", e.rec.ID, "error", err)
		n.settle(e.rec.ID, e)
	}
}

// watch publishes a running machine and waits for its end.
func (n *Node) watch(e *entry, rec *record, m vmm.Machine) {
	e.setAgent(e.box)
	n.hub.set(rec.ID, toProto(rec, e.vcpus))
	ctx, ended := context.WithCancel(n.life)
	n.background(func() {
		defer ended()
		exit, err := m.Wait(n.life)
		if err != nil {
			return // node is closing
		}
		n.exited(e, rec, exit)
	})
	if m.Stalled() == nil {
		return
	}
	n.background(func() {
		for {
			select {
			case <-m.Stalled():
				n.stall(rec.ID, rec)
			case <-ctx.Done():
				return
			}
		}
	})
}

// exited records an unexpected end. A machine that a delete is ending, or has ended, is the delete's business.
func (n *Node) exited(e *entry, rec *record, exit vmm.Exit) {
	if held, err := n.acquire(n.life, rec.ID); err != nil {
		return // node is closing
	} else if held != e {
		n.release(rec.ID, held)
		return
	}
	defer n.release(rec.ID, e)
	if e.rec != rec || rec.Phase != phaseRunning {
		return
	}
	n.deps.Logger.Warn("machine ended by itself", "sandbox_id", rec.ID, "reason", exit.Reason, "detail", exit.Detail)
	if err := n.recordExit(n.life, e, exit); err != nil {
		n.deps.Logger.Error("cannot record the end of a machine", "sandbox_id", rec.ID, "error", err)
	}
}

// recordExit gives back what a machine that is gone still holds, and keeps its disk and record. What cannot be given
// back now is removed by delete. The caller holds the entry.
func (n *Node) recordExit(ctx context.Context, e *entry, exit vmm.Exit) error {
	rec := e.rec
	e.setAgent(nil)
	rec.Phase, rec.Reason, rec.Detail = phaseExited, exit.Reason, clip(exit.Detail)
	rec.Paused, rec.Held, e.vcpus, e.stalled = false, "", vcpus{}, time.Time{}
	err := n.records.save(rec)
	failpoint.Hit(failpoint.RecordExited)
	n.hub.set(rec.ID, toProto(rec, e.vcpus))
	letGo := e.letGo()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if cerr := errors.Join(letGo, n.removeCompute(ctx, rec.ID, rec.Driver)); cerr != nil {
		n.deps.Logger.Error("cannot give back all of an ended machine", "sandbox_id", rec.ID, "error", cerr)
	}
	return err
}

const maxDetailBytes = 4 << 10

// clip keeps the end of s, where the newest console lines are.
func clip(s string) string {
	if len(s) > maxDetailBytes {
		s = s[len(s)-maxDetailBytes:]
	}
	return strings.ToValidUTF8(s, "�")
}

// reap removes what this installation has without a record: what a crash between two steps has left.
func (n *Node) reap(ctx context.Context) error {
	repairs, err := n.ledger.Reconcile(ctx, false)
	if err != nil {
		return fmt.Errorf("compare the host with the records: %w", err)
	}
	for _, r := range repairs {
		log := n.deps.Logger.With("kind", r.Kind, "name", r.Name, "sandbox_id", r.SandboxID())
		switch {
		case r.Action == ledger.ActionRemove && r.Done:
			log.Warn("removed what no record stands for")
		case r.Live:
			log.Error("something of this installation stands for nothing, and stays", "reason", r.Reason)
		}
	}
	return nil
}

func toProto(r *record, v vcpus) *nodev1.Machine {
	if r.Phase == phaseMaking && r.Previous != nil {
		r = r.Previous
	}
	m := &nodev1.Machine{SandboxId: string(r.ID), Generation: r.Generation, Driver: r.Driver, Isolation: r.Isolation}
	switch {
	case r.Phase != phaseRunning:
		m.State, m.Reason, m.Detail = nodev1.MachineState_MACHINE_STATE_EXITED, r.Reason, r.Detail
	case v.still:
		m.State, m.Reason = nodev1.MachineState_MACHINE_STATE_PAUSED, r.Held
	default:
		m.State = nodev1.MachineState_MACHINE_STATE_RUNNING
	}
	return m
}
