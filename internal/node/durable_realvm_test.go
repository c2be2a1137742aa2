//go:build realvm

package node_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	nodev1 "github.com/space-sandbox/space/api/proto/node/v1"
	"github.com/space-sandbox/space/internal/pool"
	"github.com/space-sandbox/space/internal/rpc"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/vmm"
)

const (
	running = nodev1.MachineState_MACHINE_STATE_RUNNING
	paused  = nodev1.MachineState_MACHINE_STATE_PAUSED
	exited  = nodev1.MachineState_MACHINE_STATE_EXITED
)

// TestGuestThatFillsThePool: a guest that writes more than the pool has is paused before a write fails; another sandbox can
// be deleted; with its space the guest goes on, and what it wrote is there.
func TestGuestThatFillsThePool(t *testing.T) {
	l := newLab(t, 640, 0) // its reserve is an eighth
	writer, ballast, fill := l.almostFull(l.space().TotalBytes / 8)
	l.await(writer, paused, sandbox.ReasonPoolFull)
	l.await(ballast, paused, sandbox.ReasonPoolFull)
	if u := l.space(); u.FreeBytes == 0 {
		t.Error("nothing of the reserve is left")
	} else {
		t.Logf("paused with %d MiB free", u.FreeBytes/mib)
	}
	if l.log.has(stallText) {
		t.Error("a write has failed before")
	}
	_, err := l.client.ResumeMachine(t.Context(), connect.NewRequest(&nodev1.ResumeMachineRequest{SandboxId: string(writer), Generation: 1}))
	if code := sandbox.CodeOf(rpc.FromConnect(err)); code != sandbox.CodePoolFull {
		t.Errorf("resume: %v", err)
	}
	l.stop()
	l.start() // another node holds it too
	l.await(writer, paused, sandbox.ReasonPoolFull)
	l.remove(ballast)
	l.await(writer, running, "")
	l.finish(writer, fill)
	l.remove(writer)
}

// TestWriteThatFails: where the reserve does not hold, the host's ENOSPC stops the guest without telling it. Node holds the
// machine, over its own restart too, and the write is done again.
func TestWriteThatFails(t *testing.T) {
	l := newLab(t, 640, 1)
	writer, ballast, fill := l.almostFull(0)
	l.await(writer, paused, sandbox.ReasonPoolFull)
	if !l.log.has(stallText) {
		t.Error("no write has failed")
	}
	l.stop()
	l.start()
	l.await(writer, paused, sandbox.ReasonPoolFull)
	l.remove(ballast)
	l.finish(writer, fill)
	l.await(writer, running, "")
	l.remove(writer)
}

const stallText = "no space for the disk of a machine"

// almostFull begins to write three times of what the pool has free over keep. The ballast's disk has the rest.
func (l *lab) almostFull(keep uint64) (writer, ballast sandbox.ID, fill string) {
	t := l.t
	t.Helper()
	writer, ballast = sandbox.NewID(), sandbox.NewID()
	l.ensure(writer, 1, false)
	l.ensure(ballast, 1, false)
	p := l.pool()
	defer p.Close()
	disk, err := p.OpenDisk(ballast)
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	const room = 48 * mib
	size := l.space().FreeBytes - keep - room
	if err := unix.Fallocate(int(disk.Fd()), unix.FALLOC_FL_KEEP_SIZE, 1<<30, int64(size)); err != nil {
		t.Fatal(err)
	}
	return writer, ballast, l.begin(writer, "/fill", "write", "144", "/large")
}

func (l *lab) space() pool.Usage {
	l.t.Helper()
	p := l.pool()
	defer p.Close()
	u, err := p.Usage(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	return u
}

// TestPauseOverRestarts: a real machine stays paused over a node's end, and its guest goes on where it was.
func TestPauseOverRestarts(t *testing.T) {
	l := newLab(t, 1024, 0)
	id := sandbox.NewID()
	l.ensure(id, 1, false)
	fill := l.begin(id, "/fill", "write", "64", "/file")
	m, err := l.client.PauseMachine(bounded(t), connect.NewRequest(&nodev1.PauseMachineRequest{SandboxId: string(id), Generation: 1}))
	if err != nil || m.Msg.Machine.State != paused {
		t.Fatalf("pause: %v %v", m, err)
	}
	before := l.written(id)
	l.stop()
	l.start()
	l.await(id, paused, "")
	if after := l.written(id); after != before {
		t.Errorf("the paused guest has written: %d blocks, then %d", before, after)
	}
	r, err := l.client.ResumeMachine(bounded(t), connect.NewRequest(&nodev1.ResumeMachineRequest{SandboxId: string(id), Generation: 1}))
	if err != nil || r.Msg.Machine.State != running {
		t.Fatalf("resume: %v %v", r, err)
	}
	l.finish(id, fill)
	l.remove(id)
}

// written is how many blocks a machine's disk has.
func (l *lab) written(id sandbox.ID) int64 {
	l.t.Helper()
	p := l.pool()
	defer p.Close()
	disk, err := p.OpenDisk(id)
	if err != nil {
		l.t.Fatal(err)
	}
	defer disk.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(disk.Fd()), &st); err != nil {
		l.t.Fatal(err)
	}
	return st.Blocks
}

// TestRecoverAfterACrash: the VMM is killed in the middle of writing. What the guest's disk had been told to keep is there
// for the machine that is made on it, whose guest copes with a file system that was not unmounted.
func TestRecoverAfterACrash(t *testing.T) {
	l := newLab(t, 1024, 0)
	id := sandbox.NewID()
	l.ensure(id, 1, false)
	l.finish(id, l.begin(id, "/fill", "write", "16", "/kept"))
	for generation := int64(2); generation < 4; generation++ {
		l.begin(id, "/fill", "write", "200", "/cut-off")
		l.kill(id)
		l.await(id, exited, sandbox.ReasonVMMExit)
		l.ensure(id, generation, true)
		l.finish(id, l.begin(id, "/fill", "check", "16", "/kept"))
	}
	l.remove(id)
}

// kill ends a machine's VMM behind node's back, while it is stopped: that hinders nobody.
func (l *lab) kill(id sandbox.ID) {
	l.t.Helper()
	data, err := os.ReadFile(filepath.Join(l.dir.MachinesDir(), string(id)+".json"))
	if err != nil {
		l.t.Fatal(err)
	}
	var record struct{ Machine vmm.State }
	if err := json.Unmarshal(data, &record); err != nil {
		l.t.Fatal(err)
	}
	for _, sig := range []unix.Signal{unix.SIGSTOP, unix.SIGKILL} {
		if err := unix.Kill(record.Machine.Process.PID, sig); err != nil {
			l.t.Fatal(err)
		}
	}
}
