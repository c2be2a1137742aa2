//go:build realvm

package e2e

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
	"github.com/space-sandbox/space/internal/part"
)

// lifecycle is a call on one sandbox.
type lifecycle func(c *client.Client, ctx context.Context, ref string, opts ...client.Option) (*apiv1.Lifecycle, error)

// verb makes a lifecycle call that must succeed and leave the sandbox in a state.
func (i *installation) verb(call lifecycle, ref, state string) apiv1.Lifecycle {
	i.t.Helper()
	res, err := call(i.client, i.t.Context(), ref, client.Wait(2*time.Minute))
	if err != nil {
		i.t.Fatalf("to %s: %v", state, err)
	}
	if res.Operation.State != "succeeded" || res.Sandbox.State != state || res.Sandbox.DesiredState != state {
		i.t.Fatalf("operation %s, sandbox %s, to be %s; want %s", res.Operation.State, res.Sandbox.State, res.Sandbox.DesiredState, state)
	}
	return *res
}

func (i *installation) pause(ref string) apiv1.Lifecycle {
	i.t.Helper()
	return i.verb((*client.Client).PauseSandbox, ref, "paused")
}

func (i *installation) resume(ref string) apiv1.Lifecycle {
	i.t.Helper()
	return i.verb((*client.Client).ResumeSandbox, ref, "running")
}

// cpuTicks is the CPU time that a process has used, in ticks of the kernel.
func (i *installation) cpuTicks(pid int) int {
	i.t.Helper()
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		i.t.Fatal(err)
	}
	fields := strings.Fields(string(raw))
	sum := 0
	for _, f := range fields[13:15] {
		n, err := strconv.Atoi(f)
		if err != nil {
			i.t.Fatal(err)
		}
		sum += n
	}
	return sum
}

// refused checks that a call is refused with invalid_state, and that the remedy names what helps.
func (i *installation) refused(what string, err error, remedy string) {
	i.t.Helper()
	e, ok := errors.AsType[*client.Error](err)
	if !ok || e.Code != "invalid_state" || e.Status != 409 || !strings.Contains(e.Remedy, remedy) {
		i.t.Errorf("%s: %v, want invalid_state with a remedy that names %q", what, err, remedy)
	}
}

// TestPause: a paused machine really stands still, and goes on where it stood: its counter, its output and its exit code.
func TestPause(t *testing.T) {
	t.Parallel()
	i := install(t)
	i.start()
	box := i.create(apiv1.CreateSandbox{Name: "sleeper"})
	cmd, err := i.client.CreateCommand(t.Context(), "sleeper", apiv1.CreateCommand{Start: true,
		Argv: []string{"sh", "-c", "n=0; while [ ! -e stop ]; do n=$((n+1)); echo $n; sleep 0.05; done; exit 42"}})
	if err != nil {
		t.Fatal(err)
	}
	r := &counter{i: i, id: cmd.ID}
	r.advance(5)
	before, asked := i.uptime("sleeper"), time.Now()
	i.pause("sleeper")
	began := time.Now()
	vmm := i.vmmPID(box.ID)
	ticks := i.cpuTicks(vmm)
	again := i.pause("sleeper")
	if !again.Operation.NoChange {
		t.Error("a second pause says that it has changed something")
	}
	_, err = i.client.Exec(t.Context(), "sleeper", apiv1.Exec{Argv: []string{"true"}})
	i.refused("exec", err, "space resume sleeper")
	_, err = i.client.RecoverSandbox(t.Context(), "sleeper")
	i.refused("recover", err, "space resume sleeper")
	held, err := i.client.Command(t.Context(), cmd.ID)
	if err != nil || held.State != "running" {
		t.Errorf("the command while its machine stands still: %+v %v", held, err)
	}
	for _, name := range []string{part.Control, part.Node, part.Gateway} {
		i.killPart(name) // none of it wakes the machine
	}
	i.eventually(time.Minute, "SPACE is ready again", func() bool { return i.client.Ready(t.Context()) == nil })
	i.eventually(time.Minute, "it has stood still for 5 s", func() bool { return time.Since(began) > 5*time.Second })
	if used := i.cpuTicks(vmm) - ticks; used > 50 { // of at least 500 that a spinning vCPU would have had
		t.Errorf("the VMM has used %d ticks of CPU in %s", used, time.Since(began))
	}
	if got, err := i.client.Sandbox(t.Context(), "sleeper"); err != nil || got.State != "paused" {
		t.Fatalf("after the restarts: %+v %v", got, err)
	}
	stood := time.Since(began)
	i.resume("sleeper")
	after, answered := i.uptime("sleeper"), time.Now()
	if went, passed := after-before, answered.Sub(asked); went > (passed-stood).Seconds()+2 {
		t.Errorf("the guest's uptime went on by %.1f s while %s passed, %s of it in a pause", went, passed, stood)
	}
	if guest := i.seconds("sleeper"); guest < time.Now().Add(-5*time.Second).Unix() || guest > time.Now().Add(5*time.Second).Unix() {
		t.Errorf("the guest's wall clock is %d, the host's %d", guest, time.Now().Unix())
	}
	r.advance(5)
	i.sh("sleeper", "touch stop")
	got, err := i.client.WaitCommand(t.Context(), cmd.ID)
	if err != nil || got.ExitCode == nil || *got.ExitCode != 42 {
		t.Fatalf("exit: %+v, %v", got, err)
	}
	if !i.resume("sleeper").Operation.NoChange {
		t.Error("a second resume says that it has changed something")
	}
	if pid := i.vmmPID(box.ID); pid != vmm {
		t.Errorf("the VMM is %d, was %d", pid, vmm)
	}
	i.pause("sleeper")
	i.delete("sleeper") // needs no resume
	if _, runs := i.findVMM(box.ID); runs {
		t.Error("the VMM still runs")
	}
}

// uptime is the guest's monotonic clock in seconds.
func (i *installation) uptime(ref string) float64 {
	i.t.Helper()
	up, err := strconv.ParseFloat(strings.Fields(i.sh(ref, "cat /proc/uptime"))[0], 64)
	if err != nil {
		i.t.Fatal(err)
	}
	return up
}

// seconds is the guest's wall clock.
func (i *installation) seconds(ref string) int64 {
	i.t.Helper()
	n, err := strconv.ParseInt(strings.TrimSpace(i.sh(ref, "date +%s")), 10, 64)
	if err != nil {
		i.t.Fatal(err)
	}
	return n
}

// TestVerbsAtOnce: of calls that come together one acts and all succeed, also when processes are killed meanwhile.
func TestVerbsAtOnce(t *testing.T) {
	t.Parallel()
	i := install(t)
	i.start()
	i.create(apiv1.CreateSandbox{Name: "many"})
	for round, kill := range []string{"", part.Control, part.Node} {
		for _, v := range []struct {
			call  lifecycle
			state string
		}{{(*client.Client).PauseSandbox, "paused"}, {(*client.Client).ResumeSandbox, "running"}} {
			ops := make([]string, 4)
			var wg sync.WaitGroup
			for n := range ops {
				wg.Go(func() {
					res, err := v.call(i.client, t.Context(), "many")
					if err != nil {
						t.Errorf("to %s: %v", v.state, err)
						return
					}
					ops[n] = res.Operation.ID
				})
			}
			wg.Wait()
			if kill != "" {
				i.killPart(kill)
			}
			acts := 0
			for _, id := range ops {
				op, err := i.client.WaitOperation(t.Context(), id)
				if err != nil {
					t.Fatalf("round %d, to %s: %v", round, v.state, err)
				}
				if !op.NoChange {
					acts++
				}
			}
			if acts != 1 {
				t.Errorf("round %d: %d of %d calls acted", round, acts, len(ops))
			}
			if got, err := i.client.Sandbox(t.Context(), "many"); err != nil || got.State != v.state || got.OperationID != "" {
				t.Errorf("round %d: %+v %v, want %s", round, got, err, v.state)
			}
		}
		i.sh("many", "true")
	}
	i.delete("many")
}

// TestRecover: a machine that is killed makes its sandbox fail with the reason; recover boots another one on its disk.
func TestRecover(t *testing.T) {
	t.Parallel()
	i := install(t)
	i.start()
	box := i.create(apiv1.CreateSandbox{Name: "phoenix"})
	i.sh("phoenix", "echo kept > kept; sync")
	cmd, err := i.client.CreateCommand(t.Context(), "phoenix", apiv1.CreateCommand{Argv: []string{"sleep", "1000"}, Start: true})
	if err != nil {
		t.Fatal(err)
	}
	vmm := i.vmmPID(box.ID)
	if err := syscall.Kill(vmm, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	lost, err := i.client.WaitCommand(t.Context(), cmd.ID)
	if err != nil || lost.State != "lost" || lost.Reason == nil || *lost.Reason != "vm_exit" {
		t.Errorf("the command: %+v %v", lost, err)
	}
	got, err := i.client.Sandbox(t.Context(), "phoenix")
	if err != nil || got.State != "failed" || got.Reason == nil || *got.Reason != "vmm_exit" {
		t.Fatalf("after the kill: %+v %v", got, err)
	}
	for what, call := range map[string]lifecycle{"pause": (*client.Client).PauseSandbox, "resume": (*client.Client).ResumeSandbox} {
		_, err := call(i.client, t.Context(), "phoenix")
		i.refused(what, err, "space recover phoenix")
	}
	i.verb((*client.Client).RecoverSandbox, "phoenix", "running")
	if text := i.sh("phoenix", "cat kept"); text != "kept\n" {
		t.Errorf("on the disk: %q", text)
	}
	if pid := i.vmmPID(box.ID); pid == vmm {
		t.Error("it is the same VMM")
	}
	i.pause("phoenix") // a machine that is killed while it stands still
	if err := syscall.Kill(i.vmmPID(box.ID), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	i.eventually(time.Minute, "it has failed", func() bool {
		got, err := i.client.Sandbox(t.Context(), "phoenix")
		return err == nil && got.State == "failed"
	})
	out, err := i.space(t.Context(), "recover", "phoenix")
	if err != nil || out != "phoenix\n" {
		t.Fatalf("space recover: %q %v", out, err)
	}
	if text := i.sh("phoenix", "cat kept"); text != "kept\n" {
		t.Errorf("on the disk, after the second recovery: %q", text)
	}
	i.delete("phoenix")
}
