package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"

	nodev1 "github.com/space-sandbox/space/api/proto/node/v1"
	"github.com/space-sandbox/space/internal/failpoint"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/vmm"
)

// vcpus is what node knows of a machine's vCPUs.
type vcpus struct {
	still bool // what was last seen
	known bool // false after a change that failed: the VMM may have obeyed, or obey later
}

// PauseMachine implements NodeService.
func (s service) PauseMachine(ctx context.Context, req *connect.Request[nodev1.PauseMachineRequest]) (*connect.Response[nodev1.PauseMachineResponse], error) {
	m, err := s.n.change(ctx, req.Msg.SandboxId, req.Msg.Generation, true)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&nodev1.PauseMachineResponse{Machine: m}), nil
}

// ResumeMachine implements NodeService.
func (s service) ResumeMachine(ctx context.Context, req *connect.Request[nodev1.ResumeMachineRequest]) (*connect.Response[nodev1.ResumeMachineResponse], error) {
	m, err := s.n.change(ctx, req.Msg.SandboxId, req.Msg.Generation, false)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&nodev1.ResumeMachineResponse{Machine: m}), nil
}

// change pauses or resumes a machine. What is wanted is written down first. When the machine does not obey, what was
// wanted before is wanted again, and node sees to it in the background: a call that failed changes nothing.
func (n *Node) change(ctx context.Context, rawID string, generation int64, pause bool) (*nodev1.Machine, error) {
	id, err := sandbox.ParseID(rawID)
	if err != nil {
		return nil, err
	}
	e, err := n.acquire(ctx, id)
	if err != nil {
		return nil, err
	}
	defer n.release(id, e)
	if err := changeable(e, generation); err != nil {
		return nil, err
	}
	rec := e.rec
	if rec.Paused == pause && rec.Held == "" && e.vcpus == (vcpus{still: pause, known: true}) {
		return toProto(rec, e.vcpus), nil
	}
	began, paused, held := time.Now(), rec.Paused, rec.Held
	rec.Paused, rec.Held = pause, ""
	if !pause && n.mustHold(ctx, e) {
		rec.Held = sandbox.ReasonPoolFull
	}
	if err := n.records.save(rec); err != nil {
		rec.Paused, rec.Held = paused, held
		return nil, fmt.Errorf("write down what is wanted of %s: %w", id, err)
	}
	failpoint.Hit(failpoint.WishWritten)
	if rec.Held != "" {
		n.hub.set(id, toProto(rec, e.vcpus))
		n.settle(id, e)
		return nil, n.reserve.full("the machine stays paused until the pool has room; it goes on by itself then")
	}
	if err := n.obey(ctx, e); err != nil {
		rec.Paused, rec.Held = paused, held
		err = errors.Join(err, n.records.save(rec))
		n.settle(id, e)
		return nil, err
	}
	n.metrics.steps.WithLabelValues(verb(pause)).Observe(time.Since(began).Seconds())
	n.deps.Logger.InfoContext(ctx, "a machine has been told to "+verb(pause), "sandbox_id", id, "generation", generation)
	return toProto(rec, e.vcpus), nil
}

// mustHold looks whether node would keep a machine from running just now. The caller holds the entry.
func (n *Node) mustHold(ctx context.Context, e *entry) bool {
	low, changed, err := n.reserve.look(ctx)
	if err != nil {
		n.deps.Logger.WarnContext(ctx, "the space of the pool is not known", "error", err)
	}
	if changed {
		n.tellSpace(low)
		n.settleEach()
	}
	return low || time.Since(e.stalled) < n.reserve.patience
}

func verb(pause bool) string {
	if pause {
		return "pause"
	}
	return "resume"
}

// changeable fails unless this generation of the machine exists. The caller holds the entry.
func changeable(e *entry, generation int64) error {
	rec := e.rec
	switch {
	case rec == nil:
		return &sandbox.Error{Code: sandbox.CodeNotFound, Message: "node has no machine for this sandbox"}
	case rec.Generation != generation:
		return &sandbox.Error{Code: sandbox.CodeInvalidState, Message: "node has another machine for this sandbox",
			Cause: fmt.Sprintf("generation %d is %s, generation %d was meant", rec.Generation, rec.Phase, generation)}
	case rec.Phase != phaseRunning || e.machine == nil:
		return &sandbox.Error{Code: sandbox.CodeInvalidState, Message: "the machine has ended",
			Cause: fmt.Sprintf("it is %s, reason %q", rec.Phase, rec.Reason), Remedy: "recover or delete the sandbox"}
	}
	return nil
}

// obey makes the vCPUs do what the record wants, and tells watchers. It goes on when the caller does not wait any more,
// and ends early for a delete and with node. The caller holds the entry.
func (n *Node) obey(ctx context.Context, e *entry) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), vmm.ChangeTime+time.Second)
	defer cancel()
	stop := context.AfterFunc(n.life, cancel)
	defer stop()
	e.setAct(cancel)
	defer e.setAct(nil)
	still := e.rec.still()
	act := e.machine.Resume
	if still {
		act = e.machine.Pause
	}
	if err := act(ctx); err != nil {
		e.vcpus.known = false
		if errors.Is(err, vmm.ErrGone) {
			return &sandbox.Error{Code: sandbox.CodeInvalidState, Message: "the machine has ended", Cause: err.Error(),
				Remedy: "recover or delete the sandbox", Err: err}
		}
		return err
	}
	failpoint.Hit(failpoint.MachineObeyed)
	e.vcpus = vcpus{still: still, known: true}
	n.hub.set(e.rec.ID, toProto(e.rec, e.vcpus))
	return nil
}

// setAct notes how the act that begins is ended; nil when it has ended. With a delete waiting it ends at once.
func (e *entry) setAct(end context.CancelFunc) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.act = end
	if e.deletes > 0 && end != nil {
		end()
	}
}

// interrupt ends a Pause or Resume under way.
func (e *entry) interrupt() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.act != nil {
		e.act()
	}
}

// Pauses between attempts to make a machine do what its record wants.
const (
	firstSettlePause = 250 * time.Millisecond
	maxSettlePause   = 30 * time.Second
)

// settle sees to it in the background that the vCPUs do what the record wants. It may be called at any time.
func (n *Node) settle(id sandbox.ID, e *entry) {
	e.mu.Lock()
	defer e.mu.Unlock()
	select {
	case e.stir <- struct{}{}:
	default:
	}
	if e.settling {
		return
	}
	e.settling = true
	n.background(func() { n.settleAll(id, e) })
}

// settleAll tries until the record is obeyed or does not want anything any more.
func (n *Node) settleAll(id sandbox.ID, e *entry) {
	var again <-chan time.Time
	for pause := firstSettlePause; ; {
		select {
		case <-n.life.Done():
			return
		case <-e.stir:
		case <-again:
		}
		if n.settleOnce(id, e) {
			e.mu.Lock()
			if len(e.stir) == 0 {
				e.settling = false
				e.mu.Unlock()
				return
			}
			e.mu.Unlock()
			pause, again = firstSettlePause, nil
			continue
		}
		again = time.After(pause)
		pause = min(2*pause, maxSettlePause)
	}
}

// settleOnce reports whether there is nothing left to do for now.
func (n *Node) settleOnce(id sandbox.ID, e *entry) bool {
	held, err := n.acquire(n.life, id)
	if err != nil {
		return true // node is closing
	}
	defer n.release(id, held)
	if held != e || e.rec == nil || e.rec.Phase != phaseRunning || e.machine == nil {
		return true
	}
	again := n.hold(e)
	if e.vcpus == (vcpus{still: e.rec.still(), known: true}) {
		return !again
	}
	err = n.obey(n.life, e)
	if err == nil || errors.Is(err, vmm.ErrGone) {
		return !again
	}
	n.deps.Logger.Warn("a machine does not obey", "sandbox_id", id, "wanted", verb(e.rec.still()), "error", err)
	return false
}
