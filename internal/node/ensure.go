package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	nodev1 "github.com/space-sandbox/space/api/proto/node/v1"
	"github.com/space-sandbox/space/internal/confine"
	"github.com/space-sandbox/space/internal/failpoint"
	"github.com/space-sandbox/space/internal/guestnet"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/sandboxnet"
	"github.com/space-sandbox/space/internal/vmm"
)

// cleanupTimeout bounds the removal of a half-made machine, which goes on when the request that wanted it is gone.
const cleanupTimeout = 60 * time.Second

// machineSpec is a checked request.
type machineSpec struct {
	id             sandbox.ID
	generation     int64
	templateDigest string
	backend        Backend
	vcpus          int
	memoryMiB      int
	diskMiB        int
	agentToken     string
	keepDisk       bool
}

// stage is a timed part of Ensure.
type stage struct {
	name string
	took time.Duration
}

// ensure makes the machine run; see EnsureMachine in the protocol.
func (n *Node) ensure(ctx context.Context, spec machineSpec) (*nodev1.Machine, []stage, error) {
	e, err := n.acquire(ctx, spec.id)
	if err != nil {
		return nil, nil, err
	}
	defer n.release(spec.id, e)
	if e.rec != nil && e.rec.Phase == phaseRunning && e.rec.Generation == spec.generation {
		return toProto(e.rec, e.vcpus), nil, nil
	}
	if n.mustHold(ctx, e) {
		return nil, nil, n.reserve.full("the host's pool has no room for another machine; nothing happened")
	}
	rec, err := n.newRecord(ctx, e, spec)
	if err != nil {
		return nil, nil, err
	}
	stages, err := n.makeMachine(ctx, e, rec, spec)
	if err != nil {
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		e.rec = rec
		if aerr := n.abandon(cctx, e); aerr != nil {
			n.removeLater(spec.id, e)
			err = errors.Join(err, aerr)
		}
		return nil, nil, err
	}
	return toProto(e.rec, e.vcpus), stages, nil
}

// newRecord is the record of a machine that is to be made: of a new one, or of one on the disk that e.rec has kept. It is
// not written yet. The caller holds the entry.
func (n *Node) newRecord(ctx context.Context, e *entry, spec machineSpec) (*record, error) {
	rec := &record{ID: spec.id, Generation: spec.generation, Phase: phaseMaking, Driver: spec.backend.Driver.Name(),
		VCPUs: spec.vcpus, MemoryMiB: spec.memoryMiB, DiskMiB: spec.diskMiB, TemplateDigest: spec.templateDigest,
		BootID: n.deps.BootID, MadeAt: time.Now().UTC()}
	if e.rec != nil {
		if err := keepable(e.rec, spec); err != nil {
			return nil, err
		}
		// What its end could not give back is in the way of the next one.
		if err := n.removeCompute(ctx, spec.id, ""); err != nil {
			return nil, fmt.Errorf("give back what the ended machine held: %w", err)
		}
		rec.Previous, rec.UID, rec.DiskMiB, rec.TemplateDigest = e.rec, e.rec.UID, e.rec.DiskMiB, e.rec.TemplateDigest
		return rec, nil
	}
	if spec.keepDisk {
		return nil, &sandbox.Error{Code: sandbox.CodeInvalidState, Message: "there is no disk to go on with",
			Cause: "node has no machine of this sandbox", Remedy: "delete the sandbox"}
	}
	var err error
	rec.UID, err = n.uids.take(spec.id)
	return rec, err
}

// keepable fails unless a machine can be made on the disk of old.
func keepable(old *record, spec machineSpec) error {
	e := &sandbox.Error{Code: sandbox.CodeInvalidState, Message: "node has another machine for this sandbox",
		Cause:  fmt.Sprintf("generation %d is %s, generation %d was asked", old.Generation, old.Phase, spec.generation),
		Remedy: "delete the sandbox"}
	switch {
	case old.Phase != phaseExited, old.Generation >= spec.generation:
		return e
	case !spec.keepDisk:
		e.Remedy = "recover the sandbox, or delete it"
		return e
	}
	return nil
}

// abandon removes a machine that could not be made. A disk that was there before is kept, and its machine has ended as
// before. The caller holds the entry.
func (n *Node) abandon(ctx context.Context, e *entry) error {
	if e.rec.Previous == nil {
		return n.dismantle(ctx, e)
	}
	if e.machine != nil {
		if err := e.machine.Kill(ctx); err != nil { // the record stays as it is: the disk may still be written
			return fmt.Errorf("end the machine of %s: %w", e.rec.ID, err)
		}
	}
	errs := []error{e.letGo(), n.removeCompute(ctx, e.rec.ID, "")}
	e.rec, e.vcpus = e.rec.Previous, vcpus{}
	n.hub.set(e.rec.ID, toProto(e.rec, e.vcpus))
	if err := n.records.save(e.rec); err != nil {
		errs = append(errs, err) // after a restart of node it is abandoned once more
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("give up the machine of %s: %w", e.rec.ID, err)
	}
	return nil
}

// makeMachine makes all parts in order of their record. On error the caller dismantles.
func (n *Node) makeMachine(ctx context.Context, e *entry, rec *record, spec machineSpec) ([]stage, error) {
	if err := n.records.save(rec); err != nil {
		return nil, err
	}
	failpoint.Hit(failpoint.RecordMaking)
	parts, stages, err := n.makeParts(ctx, rec, spec)
	if err != nil {
		return nil, err
	}
	defer parts.close()
	e.box = parts.box
	start := time.Now()
	m, err := spec.backend.Driver.Boot(ctx, parts.spec(rec, n.deps.Dir.MachineRunDir(rec.ID)))
	if err != nil {
		return nil, fmt.Errorf("boot: %w", err)
	}
	failpoint.Hit(failpoint.MachineStarted)
	e.machine = m
	stages = append(stages, stage{"boot", time.Since(start)})
	start = time.Now()
	state, previous := m.State(), rec.Previous
	rec.Machine, rec.Phase, rec.Isolation, rec.Previous = &state, phaseRunning, m.Isolation(), nil
	if err := n.records.save(rec); err != nil {
		rec.Previous = previous // or its disk would be removed
		return nil, err
	}
	failpoint.Hit(failpoint.RecordRunning)
	stages = append(stages, stage{"record", time.Since(start)})
	e.rec, e.vcpus = rec, vcpus{known: true}
	n.watch(e, rec, m)
	return stages, nil
}

// parts are the descriptors a machine boots from.
type parts struct {
	disk, ram, kernel, initrd, tap *os.File
	args                           string
	box                            sandboxnet.Box
	group                          *confine.Group
	agentToken                     string
}

func (p *parts) close() {
	for _, f := range []*os.File{p.disk, p.ram, p.kernel, p.initrd, p.tap} {
		if f != nil {
			f.Close()
		}
	}
}

func (p *parts) spec(rec *record, runDir string) vmm.Spec {
	return vmm.Spec{ID: rec.ID, Generation: rec.Generation, VCPUs: rec.VCPUs, MemoryMiB: rec.MemoryMiB,
		Kernel: p.kernel, Initrd: p.initrd, KernelArgs: p.args, RAM: p.ram, Disk: p.disk, Tap: p.tap,
		GuestMAC: guestnet.GuestMAC, RunDir: runDir, AgentToken: p.agentToken, UID: rec.UID, GID: rec.UID, Group: p.group}
}

// makeParts makes disk and network side by side, and the rest.
func (n *Node) makeParts(ctx context.Context, rec *record, spec machineSpec) (*parts, []stage, error) {
	p := &parts{agentToken: spec.agentToken}
	var disk, network time.Duration
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		defer elapsed(&disk, time.Now())
		if rec.Previous != nil {
			p.disk, err = n.deps.Pool.OpenDisk(rec.ID)
		} else {
			p.disk, err = n.deps.Pool.CreateDisk(gctx, rec.ID, rec.TemplateDigest, rec.DiskMiB)
		}
		if err == nil {
			failpoint.Hit(failpoint.DiskMade)
		}
		return err
	})
	g.Go(func() (err error) {
		defer elapsed(&network, time.Now())
		if p.box, err = spec.backend.Network.Create(gctx, rec.ID); err != nil {
			return fmt.Errorf("network: %w", err)
		}
		failpoint.Hit(failpoint.NetworkMade)
		return nil
	})
	err := g.Wait()
	if err == nil {
		err = n.makeRest(ctx, p, rec, spec)
	}
	if err != nil {
		p.close()
		if p.box != nil {
			err = errors.Join(err, p.box.Close())
		}
		return nil, nil, err
	}
	return p, []stage{{"disk", disk}, {"network", network}}, nil
}

func (n *Node) makeRest(ctx context.Context, p *parts, rec *record, spec machineSpec) (err error) {
	if err := os.MkdirAll(n.deps.Dir.MachineRunDir(rec.ID), 0o700); err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	failpoint.Hit(failpoint.DirectoryMade)
	if n.deps.Groups != nil {
		if p.group, err = n.deps.Groups.Create(groupName(rec.ID), vmm.Limits(rec.VCPUs, rec.MemoryMiB)); err != nil {
			return fmt.Errorf("control group: %w", err)
		}
	}
	failpoint.Hit(failpoint.GroupMade)
	if spec.backend.Guest == nil {
		return nil
	}
	if p.kernel, p.initrd, p.args, err = spec.backend.Guest.Open(rec.ID, spec.agentToken); err != nil {
		return fmt.Errorf("guest assets: %w", err)
	}
	if p.ram, err = newRAM(rec.MemoryMiB); err != nil {
		return err
	}
	if p.tap, err = p.box.Tap(ctx); err != nil {
		return fmt.Errorf("tap: %w", err)
	}
	failpoint.Hit(failpoint.TapMade)
	return nil
}

func groupName(id sandbox.ID) string { return "vm-" + string(id) }

func elapsed(d *time.Duration, start time.Time) { *d = time.Since(start) }
