//go:build realvm

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
)

// crashPatience bounds each wait of these tests; reaching it is a failure.
const crashPatience = time.Minute

// TestCrashAtEveryStepOnFake ends a process at every durable step of every operation, with the fake driver: the operation
// ends as it should when the process has been started again, once in effect, record, machine and ledger agree, and nothing is
// left of what was deleted.
func TestCrashAtEveryStepOnFake(t *testing.T) {
	t.Parallel()
	crashes(t, installation{driver: "fake", env: []string{"SPACE_ALLOW_FAKE=1"}}, 4, lives(false))
}

// TestCrashSampleOnQEMU does some of it with real machines; all of it is in make test-long.
func TestCrashSampleOnQEMU(t *testing.T) {
	t.Parallel()
	crashes(t, installation{driver: "qemu"}, 2, sample())
}

// crashes spreads lives over installations side by side.
func crashes(t *testing.T, with installation, installations int, all []life) {
	with.bin = buildWithFailpoints(t)
	for n := range installations {
		t.Run(fmt.Sprintf("installation %d", n), func(t *testing.T) {
			t.Parallel()
			w := newCrashWorld(t, with)
			for k := n; k < len(all); k += installations {
				w.live(all[k], fmt.Sprintf("life-%d", k))
				w.restart()
			}
		})
	}
}

// buildWithFailpoints builds the program as it is delivered, but for the tag.
func buildWithFailpoints(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil { // the parts are other users
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-tags", "embedagent,failpoints", "-o", filepath.Join(dir, "space"),
		"github.com/space-sandbox/space/cmd/space")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return dir
}

// crashWorld is an installation in which points can be armed.
type crashWorld struct {
	*installation
	armed string // the file
	empty map[string][]string
	calls int
	doing string // for messages
}

func newCrashWorld(t *testing.T, with installation) *crashWorld {
	t.Helper()
	dir, err := os.MkdirTemp("", "space-crash-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil { // each part takes the file away, and each is another user
		t.Fatal(err)
	}
	w := &crashWorld{armed: filepath.Join(dir, "points")}
	with.env = append(slices.Clone(with.env), "SPACE_FAILPOINTS="+w.armed)
	w.installation = installWith(t, with)
	w.start()
	w.installation.delete(w.create(apiv1.CreateSandbox{}).ID) // directories that are made once
	w.empty = w.lasting()
	return w
}

// lasting is what the installation has on the host, without the descriptors of processes, which come and go.
func (w *crashWorld) lasting() map[string][]string {
	w.t.Helper()
	all := w.possessions()
	maps.DeleteFunc(all, func(kind string, items []string) bool {
		zombies := strings.HasPrefix(kind, "processes") && strings.Join(items, "") == "" // until init has seen them
		return zombies || strings.HasPrefix(kind, "descriptors")
	})
	return all
}

// restart stops space up and starts it again: it waits longer from crash to crash before it starts a part again.
func (w *crashWorld) restart() {
	w.t.Helper()
	if err := w.up.Process.Signal(syscall.SIGTERM); err != nil {
		w.t.Fatal(err)
	}
	<-w.ended
	w.start()
	w.empty = w.lasting() // the addresses have changed
}

// live leads one sandbox through its life.
func (w *crashWorld) live(l life, name string) {
	w.t.Helper()
	w.step(name, "create", l.create, "running", func(o ...client.Option) (*apiv1.Lifecycle, error) {
		return w.client.CreateSandbox(w.t.Context(), apiv1.CreateSandbox{Template: "mini", Name: name, MemoryMiB: new(128)}, o...)
	}, l.interrupted)
	call := func(verb lifecycle) func(o ...client.Option) (*apiv1.Lifecycle, error) {
		return func(o ...client.Option) (*apiv1.Lifecycle, error) { return verb(w.client, w.t.Context(), name, o...) }
	}
	switch {
	case l.pause == nil:
	case l.leased:
		w.lease(name, "pause", l.pause, "paused")
	default:
		w.step(name, "pause", l.pause, "paused", call((*client.Client).PauseSandbox), false)
	}
	if l.resume != nil {
		w.step(name, "resume", l.resume, "running", call((*client.Client).ResumeSandbox), false)
	}
	if l.exit != nil {
		w.exit(name, l.exit)
		w.step(name, "recover", l.recover, "running", call((*client.Client).RecoverSandbox), false)
	}
	id := w.sandbox(name).ID
	if l.leased && l.remove != nil {
		w.lease(name, "delete", l.remove, "deleted")
	} else {
		w.step(name, "delete", l.remove, "deleted", call((*client.Client).DeleteSandbox), false)
	}
	w.nothingLeft(id)
}

// step arms c, makes a call, and checks how it ended.
func (w *crashWorld) step(name, kind string, c chain, state string, call func(...client.Option) (*apiv1.Lifecycle, error), interrupted bool) {
	w.t.Helper()
	w.calls++
	key := client.IdempotencyKey(fmt.Sprintf("call-%d", w.calls))
	w.arm(name, kind, c)
	var res *apiv1.Lifecycle
	w.insist("call", func() (err error) { res, err = call(key); return err })
	op := w.outcome(res.Operation.ID)
	w.hit()
	if interrupted {
		if op.State != "failed" || op.Error == nil || op.Error.Code != "interrupted" {
			w.t.Fatalf("%s: the operation is %s, %+v", w.doing, op.State, op.Error)
		}
		w.is(name, "failed")
		w.nothingLeft(res.Sandbox.ID)
		return
	}
	if op.State != "succeeded" || op.NoChange {
		w.t.Fatalf("%s: the operation is %s (no change %t), %+v", w.doing, op.State, op.NoChange, op.Error)
	}
	w.is(name, state)
}

// lease arms c, lets the sandbox's lease end soon, and waits for what comes of it.
func (w *crashWorld) lease(name, kind string, c chain, state string) {
	w.t.Helper()
	box := w.sandbox(name)
	if box.State == "paused" { // there a lease's time stands still
		w.insist("no lease", func() error { _, err := w.client.RemoveLease(w.t.Context(), box.ID); return err })
		w.step(name, "resume", chain{}, "running", func(o ...client.Option) (*apiv1.Lifecycle, error) {
			return w.client.ResumeSandbox(w.t.Context(), name, o...)
		}, false)
	}
	w.arm(name, "lease "+kind, c)
	w.insist("lease", func() error {
		_, err := w.client.SetLease(w.t.Context(), box.ID, apiv1.PatchLease{TTLSeconds: 1, OnExpiry: kind})
		return err
	})
	var op apiv1.Operation
	w.eventually(crashPatience, w.doing+" begins", func() bool {
		ops, err := w.client.ListOperations(w.t.Context(), client.OperationQuery{Sandbox: box.ID})
		if err != nil || len(ops.Items) == 0 {
			return false
		}
		op = ops.Items[0]
		return op.Kind == kind
	})
	if op = w.outcome(op.ID); op.State != "succeeded" {
		w.t.Fatalf("%s: the operation is %s, %+v", w.doing, op.State, op.Error)
	}
	w.hit()
	w.is(name, state)
}

// exit arms c and kills the machine.
func (w *crashWorld) exit(name string, c chain) {
	w.t.Helper()
	w.arm(name, "exit", c)
	pid, _ := w.findVMM(w.sandbox(name).ID)
	if err := syscall.Kill(pid, syscall.SIGKILL); pid == 0 || err != nil {
		w.t.Fatalf("%s: kill %d: %v", w.doing, pid, err)
	}
	w.hit()
	w.eventually(crashPatience, w.doing+" is in the record", func() bool {
		box, err := w.client.Sandbox(w.t.Context(), name)
		return err == nil && box.State == "failed"
	})
	if box := w.sandbox(name); box.Reason == nil || *box.Reason != "vmm_exit" {
		w.t.Errorf("%s: the reason is %v", w.doing, box.Reason)
	}
}

func (w *crashWorld) arm(name, kind string, c chain) {
	w.t.Helper()
	w.doing = fmt.Sprintf("%s: %s with crashes at %q", name, kind, c)
	if len(c) == 0 {
		return
	}
	var lines []string
	for _, point := range c {
		lines = append(lines, string(point))
	}
	fresh := w.armed + ".new"
	err := os.WriteFile(fresh, []byte(strings.Join(lines, "\n")), 0o666)
	if err = errors.Join(err, os.Chmod(fresh, 0o666), os.Rename(fresh, w.armed)); err != nil {
		w.t.Fatal(err)
	}
}

// hit waits until all points have been hit and SPACE is ready again.
func (w *crashWorld) hit() {
	w.t.Helper()
	w.eventually(crashPatience, w.doing+": all points are hit", func() bool { return len(glob(w.t, w.armed+"*")) == 0 })
	w.eventually(crashPatience, w.doing+": ready again", func() bool { return w.client.Ready(w.t.Context()) == nil })
}

// insist makes a call until it is answered: connections break when control ends.
func (w *crashWorld) insist(what string, call func() error) {
	w.t.Helper()
	var last error
	w.eventually(crashPatience, w.doing+": "+what, func() bool {
		last = call()
		if e, ok := errors.AsType[*client.Error](last); ok && !e.Retryable {
			w.t.Fatalf("%s: %s: %v", w.doing, what, last)
		}
		return last == nil
	})
}

func (w *crashWorld) outcome(id string) (op apiv1.Operation) {
	w.t.Helper()
	w.insist("the end of "+id, func() error {
		got, err := w.client.Operation(w.t.Context(), id, client.Wait(10*time.Second))
		if err != nil {
			return err
		}
		if op = *got; op.EndedAt == nil {
			return errors.New("it has not ended")
		}
		return nil
	})
	return op
}

func (w *crashWorld) sandbox(name string) (box apiv1.Sandbox) {
	w.t.Helper()
	w.insist("the sandbox", func() error {
		got, err := w.client.Sandbox(w.t.Context(), name)
		if err == nil {
			box = *got
		}
		return err
	})
	return box
}

// is checks that record, route, machine and ledger agree on a state.
func (w *crashWorld) is(name, state string) {
	w.t.Helper()
	var last *apiv1.Ledger
	w.eventually(crashPatience, w.doing+": the ledger is exact", func() bool {
		got, err := w.client.Ledger(w.t.Context())
		if err == nil && got.Drift > 0 && (last == nil || last.Drift != got.Drift) {
			w.t.Logf("%s: drift of %d: %+v", w.doing, got.Drift, got.Objects)
		}
		last = got
		return err == nil && got.Drift == 0
	})
	if state == "deleted" {
		if _, err := w.client.Sandbox(w.t.Context(), name); !client.IsNotFound(err) {
			w.t.Fatalf("%s: after it: %v", w.doing, err)
		}
		return
	}
	box := w.sandbox(name)
	if box.State != state || box.OperationID != "" {
		w.t.Fatalf("%s: the sandbox is %s, operation %q", w.doing, box.State, box.OperationID)
	}
	pid, runs := w.findVMM(box.ID)
	if w.driver == "fake" {
		runs = processState(pid) != ""
	}
	if runs != (state != "failed") {
		w.t.Fatalf("%s: the sandbox is %s, its machine is %d, running %t", w.doing, state, pid, runs)
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), crashPatience)
	defer cancel()
	var res *apiv1.ExecResult
	var err error
	w.eventually(crashPatience, w.doing+": an answer of exec", func() bool {
		res, err = w.client.Exec(ctx, name, apiv1.Exec{Argv: []string{"echo", "here"}, Cwd: "/"}) // the fake has no home of the template's
		return err == nil || client.Code(err) == "invalid_state"
	})
	if state == "running" && (err != nil || res.Stdout != "here\n") {
		w.t.Fatalf("%s: exec in a running sandbox: %q, %+v, %v", w.doing, res.Stdout, res.Error, err)
	}
	if state != "running" && err == nil {
		w.t.Fatalf("%s: exec in a sandbox that is %s says %q", w.doing, state, res.Stdout)
	}
	if state == "paused" && w.driver == "fake" {
		if s := processState(pid); s != "T" {
			w.t.Fatalf("%s: the process of the paused machine is in state %s", w.doing, s)
		}
	}
}

// processState is what a process does, as a letter; "" for none.
func processState(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return rest[:1]
}

// nothingLeft compares what the installation has on the host with what it had before the first life.
func (w *crashWorld) nothingLeft(id string) {
	w.t.Helper()
	if d := cmp.Diff(w.empty, w.lasting()); d != "" {
		w.t.Fatalf("%s: left behind (-before +after):\n%s", w.doing, d)
	}
	if left := glob(w.t, filepath.Join(os.TempDir(), "*"+id+"*")); len(left) > 0 {
		w.t.Fatalf("%s: left behind: %v", w.doing, left)
	}
}
