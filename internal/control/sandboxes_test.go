package control_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	nodev1 "github.com/space-sandbox/space/api/proto/node/v1"
	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store/sqlite"
)

func TestCreateGetListPatchDelete(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	acc := w.accept(sandbox.Spec{Name: "alpha", Template: "base", Metadata: map[string]string{"team": "x"}})
	if acc.Sandbox.State != sandbox.StateCreating || acc.Sandbox.OperationID != acc.Operation.ID || acc.Operation.State != operation.Queued {
		t.Errorf("accepted: %+v", acc)
	}
	op := w.ended(acc.Operation.ID)
	var steps []string
	for _, s := range op.Steps {
		steps = append(steps, s.Name)
		if s.State != operation.Succeeded || s.EndedAt.Before(s.StartedAt) {
			t.Errorf("step %+v", s)
		}
	}
	if want := []string{"machine", "machine/disk", "machine/boot", "ready", "ready/init", "publish"}; !slices.Equal(steps, want) {
		t.Errorf("steps %v, want %v", steps, want)
	}
	box := w.box(acc.Sandbox.ID)
	if box.State != sandbox.StateRunning || box.ReadyAt.IsZero() || box.OperationID != "" || box.Isolation != "microvm/emulated" ||
		box.Template.Ref != "base:latest" || box.Template.Digest != baseDigest || box.VCPUs != 1 || box.DiskMiB != 4096 {
		t.Errorf("ready: %+v", box)
	}
	if got := w.gw.routed(); !slices.Equal(got, []string{string(box.ID)}) {
		t.Errorf("routes %v", got)
	}
	byName, err := w.c.GetSandbox(t.Context(), "alpha")
	if err != nil || byName.ID != box.ID {
		t.Errorf("by name: %v %v", byName.ID, err)
	}
	name := "beta"
	patched, err := w.c.PatchSandbox(t.Context(), "alpha", control.SandboxPatch{Name: &name, Metadata: map[string]string{"team": "y"}})
	if err != nil || patched.Name != "beta" || patched.Metadata["team"] != "y" {
		t.Errorf("patch: %+v %v", patched, err)
	}
	page, err := w.c.ListSandboxes(t.Context(), control.SandboxFilter{Template: "base", Metadata: map[string]string{"team": "y"}})
	if err != nil || len(page.Items) != 1 {
		t.Errorf("list: %+v %v", page, err)
	}
	w.deleted(box.ID)
	_, err = w.c.GetSandbox(t.Context(), string(box.ID))
	wantCode(t, err, sandbox.CodeNotFound)
	_, err = w.c.DeleteSandbox(t.Context(), w.call(), "beta")
	wantCode(t, err, sandbox.CodeNotFound)
	w.nothingLeft()
}

func TestRefusedAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.running(sandbox.Spec{Name: "taken"})
	for name, row := range map[string]struct {
		spec sandbox.Spec
		want sandbox.Code
	}{
		"unknown template":   {sandbox.Spec{Template: "none"}, sandbox.CodeTemplateNotFound},
		"unknown digest":     {sandbox.Spec{Template: "sha256:00"}, sandbox.CodeTemplateNotFound},
		"no template":        {sandbox.Spec{}, sandbox.CodeInvalidArgument},
		"vcpus":              {sandbox.Spec{Template: "mini", VCPUs: 10000}, sandbox.CodeInvalidArgument},
		"negative vcpus":     {sandbox.Spec{Template: "mini", VCPUs: -1}, sandbox.CodeInvalidArgument},
		"memory of the host": {sandbox.Spec{Template: "mini", MemoryMiB: 9000}, sandbox.CodeInvalidArgument},
		"disk of template":   {sandbox.Spec{Template: "base", DiskMiB: 512}, sandbox.CodeInvalidArgument},
		"driver":             {sandbox.Spec{Template: "mini", Driver: "xen"}, sandbox.CodeInvalidArgument},
		"driver away":        {sandbox.Spec{Template: "mini", Driver: "firecracker"}, sandbox.CodeDriverUnavailable},
		"name":               {sandbox.Spec{Template: "mini", Name: "Bad"}, sandbox.CodeInvalidArgument},
		"name like an id":    {sandbox.Spec{Template: "mini", Name: strings.Repeat("a", 20)}, sandbox.CodeInvalidArgument},
		"name taken":         {sandbox.Spec{Template: "mini", Name: "taken"}, sandbox.CodeNameTaken},
		"capacity":           {sandbox.Spec{Template: "mini", MemoryMiB: 8000}, sandbox.CodeCapacity},
	} {
		_, err := w.c.CreateSandbox(t.Context(), w.call(), row.spec)
		if got := sandbox.CodeOf(err); got != row.want {
			t.Errorf("%s: %q (%v), want %q", name, got, err, row.want)
		}
	}
	page, err := w.c.ListOperations(t.Context(), control.OperationFilter{PageRequest: control.PageRequest{Count: true}})
	if err != nil || *page.Total != 1 {
		t.Errorf("operations: %v %v, want the one create", *page.Total, err)
	}
	w.stopNode()
	w.eventually("control notices that node is away", func() bool { return w.c.Ready(t.Context()) != nil })
	_, err = w.c.CreateSandbox(t.Context(), w.call(), sandbox.Spec{Template: "mini"})
	wantCode(t, err, sandbox.CodeUnavailable)
	w.startNode()
}

func TestTemplatesAreFoundByEveryName(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for ref, want := range map[string]string{"base": "base:latest", "base:1": "base:1", baseDigest: baseDigest} {
		box := w.running(sandbox.Spec{Template: ref})
		if box.Template.Ref != want || box.Template.Digest != baseDigest {
			t.Errorf("%s: %+v", ref, box.Template)
		}
	}
	// One that node got meanwhile is found on the first miss.
	w.node.mu.Lock()
	added := w.node.templates[0]
	w.node.templates = append(w.node.templates, cloneTemplate(added, "new:latest", "sha256:33"))
	w.node.mu.Unlock()
	if box := w.running(sandbox.Spec{Template: "new"}); box.Template.Digest != "sha256:33" {
		t.Errorf("new: %+v", box.Template)
	}
	list, err := w.c.ListTemplates(t.Context())
	if err != nil || len(list) != 3 {
		t.Errorf("list: %v %v", list, err)
	}
}

func cloneTemplate(t *nodev1.Template, name, digest string) *nodev1.Template {
	out := proto.CloneOf(t)
	out.Names, out.Digest = []string{name}, digest
	return out
}

func TestNamesUnderConcurrency(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	errs := make([]error, 12)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			_, errs[i] = w.c.CreateSandbox(t.Context(), w.call(), sandbox.Spec{Template: "mini", Name: "same", MemoryMiB: 128})
		})
	}
	wg.Wait()
	ok := 0
	for _, err := range errs {
		if err == nil {
			ok++
			continue
		}
		wantCode(t, err, sandbox.CodeNameTaken)
	}
	if ok != 1 {
		t.Errorf("%d creates of one name were accepted", ok)
	}
}

// TestAdmissionCountsAtOnce: requests of one moment cannot both get the last memory.
func TestAdmissionCountsAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	accepted := 0
	for range 10 {
		wg.Go(func() {
			_, err := w.c.CreateSandbox(t.Context(), w.call(), sandbox.Spec{Template: "mini", MemoryMiB: 2048})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				accepted++
			} else if sandbox.CodeOf(err) != sandbox.CodeCapacity {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if accepted != 4 { // of 8192 MiB
		t.Errorf("%d accepted, want 4", accepted)
	}
}

func TestIdempotentCreateAndDelete(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const n = 10
	got := make([]control.Accepted, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			var err error
			if got[i], err = w.c.CreateSandbox(t.Context(), w.keyed("k", "POST /v1/sandboxes", "a"), sandbox.Spec{Template: "mini"}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	fresh := 0
	for _, acc := range got {
		if acc.Operation.ID != got[0].Operation.ID || acc.Sandbox.ID != got[0].Sandbox.ID {
			t.Errorf("another result: %+v", acc)
		}
		if !acc.Replayed {
			fresh++
		}
	}
	if fresh != 1 {
		t.Errorf("%d of %d calls ran", fresh, n)
	}
	_, err := w.c.CreateSandbox(t.Context(), w.keyed("k", "POST /v1/sandboxes", "b"), sandbox.Spec{Template: "mini"})
	wantCode(t, err, sandbox.CodeIdempotencyConflict)
	w.ended(got[0].Operation.ID)
	id := got[0].Sandbox.ID
	scope := "DELETE /v1/sandboxes/" + string(id)
	del, err := w.c.DeleteSandbox(t.Context(), w.keyed("d", scope, ""), string(id))
	if err != nil {
		t.Fatal(err)
	}
	w.ended(del.Operation.ID)
	again, err := w.c.DeleteSandbox(t.Context(), w.keyed("d", scope, ""), string(id))
	if err != nil || !again.Replayed || again.Operation.ID != del.Operation.ID || again.Sandbox.State != sandbox.StateDeleted {
		t.Errorf("replay of the delete: %+v %v", again, err)
	}
	replay, err := w.c.CreateSandbox(t.Context(), w.keyed("k", "POST /v1/sandboxes", "a"), sandbox.Spec{Template: "mini"})
	if err != nil || !replay.Replayed || replay.Sandbox.State != sandbox.StateDeleted {
		t.Errorf("replay of the create after the delete: %+v %v", replay, err)
	}
	w.nothingLeft()
}

// TestFailedCreateLeavesNothing fails each step in turn.
func TestFailedCreateLeavesNothing(t *testing.T) {
	t.Parallel()
	boom := &sandbox.Error{Code: sandbox.CodePoolFull, Message: "boom", Cause: "because", Remedy: "do"}
	for _, step := range []string{"EnsureMachine", "AwaitReady", "Publish"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.node.setHook(failing(step, boom))
			w.gw.setHook(failing(step, boom))
			acc := w.accept(sandbox.Spec{Name: "x"})
			op := w.ended(acc.Operation.ID)
			if op.State != operation.Failed || op.Error == nil || op.Error.Code != boom.Code || op.Error.Cause != "because" || op.Error.Remedy != "do" {
				t.Errorf("operation: %s %+v", op.State, op.Error)
			}
			if last := op.Steps[len(op.Steps)-1]; last.Name != "cleanup" || last.State != operation.Succeeded {
				t.Errorf("last step %+v", last)
			}
			box := w.box(acc.Sandbox.ID)
			if box.State != sandbox.StateFailed || box.Reason != sandbox.ReasonCreateFailed || !strings.Contains(box.Detail, "boom") {
				t.Errorf("sandbox: %+v", box)
			}
			w.nothingLeft()
			w.deleted(box.ID)
			w.node.setHook(nil)
			w.gw.setHook(nil)
			w.running(sandbox.Spec{Name: "x"}) // the name is free again
		})
	}
}

func TestReadyDeadline(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.crash()
	w.limits = control.Limits{ReadyDeadline: 50 * time.Millisecond}
	w.startControl()
	w.eventually("ready", func() bool { return w.c.Ready(t.Context()) == nil })
	w.gw.setHook(newGate().at("AwaitReady"))
	acc := w.accept(sandbox.Spec{})
	op := w.ended(acc.Operation.ID)
	if op.State != operation.Failed || op.Error.Code != sandbox.CodeGuestNotReady {
		t.Errorf("%s %v", op.State, op.Error)
	}
	w.nothingLeft()
}

// TestDeleteDuringCreate stops the create at each call, deletes, and finds one canceled create and nothing left.
func TestDeleteDuringCreate(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"EnsureMachine", "AwaitReady", "Publish"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			g := newGate()
			w.node.setHook(g.at(call))
			w.gw.setHook(g.at(call))
			acc := w.accept(sandbox.Spec{Name: "x"})
			<-g.reached
			busy := w.call()
			busy.IfBusyFail = true
			_, err := w.c.DeleteSandbox(t.Context(), busy, "x")
			wantCode(t, err, sandbox.CodeSandboxBusy)
			wrong := w.call()
			wrong.IfState = sandbox.StateRunning
			_, err = w.c.DeleteSandbox(t.Context(), wrong, "x")
			wantCode(t, err, sandbox.CodeStateMismatch)
			w.deleted(acc.Sandbox.ID)
			if op := w.ended(acc.Operation.ID); op.State != operation.Canceled || op.Error.Code != sandbox.CodeCanceled {
				t.Errorf("create: %s %v", op.State, op.Error)
			}
			close(g.open)
			w.nothingLeft()
		})
	}
}

func TestTwoDeletesAreOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	box := w.running(sandbox.Spec{})
	g := newGate()
	w.node.setHook(g.at("DeleteMachine"))
	ids := make([]sandbox.OperationID, 8)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			acc, err := w.c.DeleteSandbox(t.Context(), w.keyed(fmt.Sprint(i%4), "DELETE", ""), string(box.ID))
			if err != nil {
				t.Error(err)
			}
			ids[i] = acc.Operation.ID
		})
	}
	wg.Wait()
	<-g.reached
	for _, id := range ids {
		if id != ids[0] {
			t.Errorf("operations %v, want one", ids)
		}
	}
	_, err := w.c.CancelOperation(t.Context(), ids[0])
	wantCode(t, err, sandbox.CodeInvalidState)
	close(g.open)
	w.ended(ids[0])
	w.nothingLeft()
}

// TestDeleteOutlastsNode: a delete that node cannot do now stays running and is done when it can.
func TestDeleteOutlastsNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	box := w.running(sandbox.Spec{})
	w.stopNode()
	acc, err := w.c.DeleteSandbox(t.Context(), w.call(), string(box.ID))
	if err != nil {
		t.Fatal(err)
	}
	w.eventually("the route is gone", func() bool { return len(w.gw.routed()) == 0 })
	if op, err := w.c.GetOperation(t.Context(), acc.Operation.ID, 0); err != nil || op.State.Ended() {
		t.Errorf("with node away: %s %v", op.State, err)
	}
	w.node.setHook(failing("DeleteMachine", errors.New("not yet")))
	w.startNode()
	w.eventually("node is back", func() bool { return w.c.Ready(t.Context()) == nil })
	w.node.setHook(nil)
	if op := w.ended(acc.Operation.ID); op.State != operation.Succeeded {
		t.Errorf("%s %v", op.State, op.Error)
	}
	w.nothingLeft()
}

func TestCancelQueuedCreate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.crash()
	w.limits = control.Limits{ConcurrentCreates: 1}
	w.startControl()
	w.eventually("ready", func() bool { return w.c.Ready(t.Context()) == nil })
	g := newGate()
	w.node.setHook(g.at("EnsureMachine"))
	first := w.accept(sandbox.Spec{})
	<-g.reached
	second := w.accept(sandbox.Spec{})
	_, err := w.c.CancelOperation(t.Context(), first.Operation.ID)
	wantCode(t, err, sandbox.CodeInvalidState)
	op, err := w.c.CancelOperation(t.Context(), second.Operation.ID)
	if err != nil || op.State != operation.Canceled {
		t.Errorf("cancel: %s %v", op.State, err)
	}
	if again, err := w.c.CancelOperation(t.Context(), second.Operation.ID); err != nil || again.State != operation.Canceled {
		t.Errorf("cancel again: %s %v", again.State, err)
	}
	if box := w.box(second.Sandbox.ID); box.State != sandbox.StateFailed {
		t.Errorf("sandbox of the canceled create: %s", box.State)
	}
	close(g.open)
	if op := w.ended(first.Operation.ID); op.State != operation.Succeeded {
		t.Errorf("first: %s %v", op.State, op.Error)
	}
	if n := w.node.ensures(string(second.Sandbox.ID)); n != 0 {
		t.Errorf("the canceled create asked for a machine %d times", n)
	}
	_, err = w.c.CancelOperation(t.Context(), first.Operation.ID)
	wantCode(t, err, sandbox.CodeInvalidState)
	_, err = w.c.CancelOperation(t.Context(), sandbox.NewOperationID())
	wantCode(t, err, sandbox.CodeNotFound)
}

// TestCreateCommits counts what one create costs on the disk.
func TestCreateCommits(t *testing.T) {
	t.Parallel()
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "space.db"))
	if err != nil {
		t.Fatal(err)
	}
	w := newWorldOn(t, s)
	w.running(sandbox.Spec{})
	before := s.Commits()
	began := time.Now()
	w.running(sandbox.Spec{})
	took := time.Since(began)
	if n := s.Commits() - before; n > 3 {
		t.Errorf("%d commits for a create, want at most 3", n)
	}
	t.Logf("create with sqlite and a fake node: %s", took)
}

// BenchmarkCreate measures the control plane alone: sqlite on a disk, fake node and gateway over unix sockets.
func BenchmarkCreate(b *testing.B) {
	s, err := sqlite.Open(b.Context(), filepath.Join(b.TempDir(), "space.db"))
	if err != nil {
		b.Fatal(err)
	}
	w := newWorldOn(b, s)
	b.SetParallelism(25)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			acc, err := w.c.CreateSandbox(context.Background(), w.call(), sandbox.Spec{Template: "mini", Driver: "fake"})
			if err != nil {
				b.Error(err)
				return
			}
			if op, err := w.c.GetOperation(context.Background(), acc.Operation.ID, patience); err != nil || op.State != operation.Succeeded {
				b.Errorf("%s %v %v", op.State, op.Error, err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "creates/s")
	b.ReportMetric(float64(s.Commits())/float64(b.N), "commits/create")
}

func cloneMachine(m *nodev1.Machine, id string) *nodev1.Machine {
	out := proto.CloneOf(m)
	out.SandboxId = id
	return out
}
