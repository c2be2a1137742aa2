package node

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"connectrpc.com/connect"

	nodev1 "github.com/space-sandbox/space/api/proto/node/v1"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/vmm"
)

// again asks for the next generation on the kept disk.
func (w *world) again(id sandbox.ID, generation int64) *connect.Request[nodev1.EnsureMachineRequest] {
	req := w.request(id)
	req.Msg.Generation, req.Msg.KeepDisk = generation, true
	return req
}

// ended is a machine that has ended by itself, with a mark on its disk.
func (w *world) ended(n *Node, id sandbox.ID) {
	w.t.Helper()
	w.ensure(n, id)
	disk, err := w.pool.OpenDisk(id)
	if err != nil {
		w.t.Fatal(err)
	}
	defer disk.Close()
	if _, err := disk.WriteAt([]byte("precious"), 4096); err != nil {
		w.t.Fatal(err)
	}
	w.driver.host.get(id).end(vmm.Exit{Reason: sandbox.ReasonOOM, Detail: "too much"})
	await(w.t, n, id, func(m *nodev1.Machine) bool { return m.State == exited })
}

func (w *world) requireDisk(id sandbox.ID) {
	w.t.Helper()
	disk, err := w.pool.OpenDisk(id)
	if err != nil {
		w.t.Fatalf("the disk is gone: %v", err)
	}
	defer disk.Close()
	mark := make([]byte, 8)
	if _, err := io.ReadFull(io.NewSectionReader(disk, 4096, 8), mark); err != nil || string(mark) != "precious" {
		w.t.Errorf("the disk has %q, %v", mark, err)
	}
}

// requireEnded: the machine is again what it was before the attempt, also for a node that comes later.
func (w *world) requireEnded(n *Node, id sandbox.ID) {
	w.t.Helper()
	w.requireDisk(id)
	m := await(w.t, n, id, func(*nodev1.Machine) bool { return true })
	if m.State != exited || m.Generation != 1 || m.Reason != sandbox.ReasonOOM || m.Detail != "too much" {
		w.t.Errorf("machine %v", m)
	}
	if r := w.driver.host.running(); r != 0 {
		w.t.Errorf("%d machines run", r)
	}
	for _, dir := range []string{filepath.Join(w.dir.Path, "net"), w.dir.RunDir() + "/vm"} {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			w.t.Errorf("left in %s: %v %v", dir, left, err)
		}
	}
}

func TestRecoverOnTheKeptDisk(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.start()
	id := sandbox.NewID()
	if _, err := (service{n: n}).EnsureMachine(t.Context(), w.again(id, 2)); sandbox.CodeOf(err) != sandbox.CodeInvalidState {
		t.Errorf("without a disk: %v", err)
	}
	w.ended(n, id)
	for name, req := range map[string]*connect.Request[nodev1.EnsureMachineRequest]{"same generation": w.again(id, 1), "fresh disk": func() *connect.Request[nodev1.EnsureMachineRequest] {
		r := w.again(id, 2)
		r.Msg.KeepDisk = false
		return r
	}()} {
		if _, err := (service{n: n}).EnsureMachine(t.Context(), req); sandbox.CodeOf(err) != sandbox.CodeInvalidState {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.requireEnded(n, id)
	for range 2 { // the second is the same machine
		res, err := service{n: n}.EnsureMachine(t.Context(), w.again(id, 2))
		if err != nil {
			t.Fatal(err)
		}
		if m := res.Msg.Machine; m.State != running || m.Generation != 2 {
			t.Errorf("machine %v", m)
		}
	}
	if w.driver.host.boots != 2 {
		t.Errorf("%d boots, want 2", w.driver.host.boots)
	}
	w.requireDisk(id)
	if _, err := n.AgentSocket(t.Context(), id); sandbox.CodeOf(err) == sandbox.CodeNotFound { // there is no agent to answer
		t.Errorf("no way to the recovered machine: %v", err)
	}
	w.remove(n, id)
	w.requireNothing()
}

// Whatever fails while a machine is made on a kept disk, the disk stays and the machine has ended as before.
func TestFailedRecoverKeepsTheDisk(t *testing.T) {
	t.Parallel()
	for name, breakIt := range map[string]func(*world, *Node, sandbox.ID) context.Context{
		"boot fails": func(w *world, _ *Node, _ sandbox.ID) context.Context {
			w.driver.bootErr = &sandbox.Error{Code: sandbox.CodeVMMFailed, Message: "no"}
			return w.t.Context()
		},
		"canceled": func(w *world, _ *Node, _ sandbox.ID) context.Context {
			w.driver.gate = make(chan struct{})
			ctx, cancel := context.WithCancel(w.t.Context())
			w.driver.waits = cancel
			return ctx
		},
		"the record of the running machine cannot be written": func(w *world, n *Node, id sandbox.ID) context.Context {
			w.driver.booted = func() {
				if err := os.Mkdir(filepath.Join(w.dir.MachinesDir(), recordName(id)+".tmp"), 0o700); err != nil {
					w.t.Error(err)
				}
			}
			return w.t.Context()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			n := w.start()
			id := sandbox.NewID()
			w.ended(n, id)
			ctx := breakIt(w, n, id)
			if _, err := (service{n: n}).EnsureMachine(ctx, w.again(id, 2)); err == nil {
				t.Fatal("it succeeded")
			}
			w.requireEnded(n, id)
			w.driver.bootErr, w.driver.gate, w.driver.booted = nil, nil, nil
			if err := n.Close(); err != nil {
				t.Fatal(err)
			}
			n = w.start()
			w.requireEnded(n, id)
			if _, err := (service{n: n}).EnsureMachine(t.Context(), w.again(id, 2)); err != nil {
				t.Error(err)
			}
			w.requireDisk(id)
			w.remove(n, id)
			w.requireNothing()
		})
	}
}

// A node that dies in the middle of a recovery leaves an ended machine with its disk, not nothing.
func TestCrashInRecoverKeepsTheDisk(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.start()
	id := sandbox.NewID()
	w.ended(n, id)
	if _, err := (service{n: n}).EnsureMachine(t.Context(), w.again(id, 2)); err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	// The record as it was before the machine's state was in it.
	rec := *n.machines[id].rec
	state := *rec.Machine
	rec.Phase, rec.Machine = phaseMaking, nil
	rec.Previous = &record{ID: id, Generation: 1, Phase: phaseExited, Driver: rec.Driver, UID: rec.UID, Reason: sandbox.ReasonOOM, Detail: "too much"}
	w.writeRecord(&rec)
	var vm sandbox.ID
	if err := json.Unmarshal(state.Private, &vm); err != nil {
		t.Fatal(err)
	}
	w.driver.host.get(vm).end(vmm.Exit{}) // as its control group would end it
	n = w.start()
	w.requireEnded(n, id)
	w.remove(n, id)
	w.requireNothing()
}

func (w *world) writeRecord(rec *record) {
	w.t.Helper()
	store, err := openRecords(w.dir.MachinesDir())
	if err != nil {
		w.t.Fatal(err)
	}
	if err := errors.Join(store.save(rec), store.close()); err != nil {
		w.t.Fatal(err)
	}
}

// A machine is ended by name of its generation only, its disk stays, and the next one boots on it.
func TestEndKeepsTheDisk(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.start()
	id := sandbox.NewID()
	end := func(generation int64) {
		t.Helper()
		req := connect.NewRequest(&nodev1.DeleteMachineRequest{SandboxId: string(id), EndGeneration: generation})
		if _, err := (service{n: n}).DeleteMachine(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	end(1) // there is none
	w.ended(n, id)
	if _, err := (service{n: n}).EnsureMachine(t.Context(), w.again(id, 2)); err != nil {
		t.Fatal(err)
	}
	end(1) // it is another one by now
	if m := await(t, n, id, func(*nodev1.Machine) bool { return true }); m.State != running {
		t.Errorf("machine %v", m)
	}
	for range 2 {
		end(2)
	}
	m := await(t, n, id, func(*nodev1.Machine) bool { return true })
	if m.State != exited || m.Generation != 2 || m.Reason != sandbox.ReasonGuestNotReady || w.driver.host.running() != 0 {
		t.Errorf("machine %v", m)
	}
	w.requireDisk(id)
	if _, err := (service{n: n}).EnsureMachine(t.Context(), w.again(id, 3)); err != nil {
		t.Fatal(err)
	}
	w.requireDisk(id)
	w.remove(n, id)
	w.requireNothing()
}

// A machine whose network somebody has removed keeps node from no other one.
func TestMachineWithoutNetworkIsEnded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.start()
	id, other := sandbox.NewID(), sandbox.NewID()
	w.ensure(first, id)
	w.ensure(first, other)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(w.dir.Path, "net", string(id))); err != nil {
		t.Fatal(err)
	}
	second := w.start()
	if m := await(t, second, id, func(*nodev1.Machine) bool { return true }); m.State != exited || m.Reason != sandbox.ReasonVMMExit {
		t.Errorf("machine %v", m)
	}
	if m := await(t, second, other, func(*nodev1.Machine) bool { return true }); m.State != running || w.driver.host.running() != 1 {
		t.Errorf("the other machine %v", m)
	}
	w.remove(second, id)
	w.remove(second, other)
	w.requireNothing()
}

// What could not be removed is removed later, without anybody asking again.
func TestRemovalGoesOnByItself(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.start()
	id := sandbox.NewID()
	w.ensure(n, id)
	w.driver.host.get(id).refuseKill(errors.New("it does not die"))
	if _, err := (service{n: n}).DeleteMachine(t.Context(), connect.NewRequest(&nodev1.DeleteMachineRequest{SandboxId: string(id)})); err == nil {
		t.Fatal("a machine that lives was removed")
	}
	sub := n.hub.subscribe()
	defer sub.close()
	sub.take()
	w.driver.host.get(id).refuseKill(nil)
	select {
	case <-sub.wake:
	case <-t.Context().Done():
		t.Fatal("it stays")
	}
	if m, told := sub.take()[id]; !told || m != nil {
		t.Errorf("told %t: %v", told, m)
	}
	w.requireNothing()
}
