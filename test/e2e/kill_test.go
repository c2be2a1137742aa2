//go:build realvm

package e2e

import (
	"bufio"
	"context"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
	"github.com/space-sandbox/space/internal/part"
)

// TestKillParts kills each process of the installation while a command runs: the machine and the command go on, its
// output continues from where the reader was, and its exit code arrives.
func TestKillParts(t *testing.T) {
	t.Parallel()
	i := install(t)
	i.start()
	box := i.create(apiv1.CreateSandbox{Name: "survivor"})
	// Counts until the file `stop` exists.
	cmd, err := i.client.CreateCommand(t.Context(), "survivor", apiv1.CreateCommand{Start: true,
		Argv: []string{"sh", "-c", "n=0; while [ ! -e stop ]; do n=$((n+1)); echo $n; sleep 0.05; done; echo $n > last; exit 42"}})
	if err != nil {
		t.Fatal(err)
	}
	r := &counter{i: i, id: cmd.ID}
	vmm := i.vmmPID(box.ID)
	r.advance(5)
	for _, name := range []string{part.Control, part.Node, part.Gateway} {
		i.killPart(name)
		r.advance(5)
		if pid := i.vmmPID(box.ID); pid != vmm {
			t.Fatalf("after killing %s the VMM is %d, was %d", name, pid, vmm)
		}
	}
	i.killUp()
	if pid := i.vmmPID(box.ID); pid != vmm {
		t.Fatalf("after killing up the VMM is %d, was %d", pid, vmm)
	}
	i.start()
	r.advance(5)
	i.sh("survivor", "touch stop")
	got, err := i.client.WaitCommand(t.Context(), cmd.ID)
	if err != nil || got.ExitCode == nil || *got.ExitCode != 42 {
		t.Fatalf("exit: %+v, %v", got, err)
	}
	last, err := strconv.Atoi(strings.TrimSpace(i.sh("survivor", "cat last")))
	if err != nil {
		t.Fatal(err)
	}
	r.advance(last - r.n)
	if uint64(r.offset) != got.StdoutBytes {
		t.Errorf("read %d bytes, the command wrote %d", r.offset, got.StdoutBytes)
	}
	i.delete("survivor")
	if _, running := i.findVMM(box.ID); running {
		t.Error("the VMM still runs")
	}
	i.noMachines()
}

// counter reads numbered lines of a command's output, each once, over any number of broken connections.
type counter struct {
	i      *installation
	id     string
	offset int
	n      int
}

// advance reads the next lines and checks that none is missing or repeated.
func (c *counter) advance(lines int) {
	c.i.t.Helper()
	ctx, cancel := context.WithTimeout(c.i.t.Context(), time.Minute)
	defer cancel()
	target := c.n + lines
	for c.n < target {
		err := c.read(ctx, target)
		if ctx.Err() != nil {
			c.i.t.Fatalf("output stopped at line %d: %v", c.n, err)
		}
	}
}

// read follows the output until target, or until the connection breaks: parts are restarting.
func (c *counter) read(ctx context.Context, target int) error {
	token, err := c.i.client.AttachToken(ctx, c.id)
	if err != nil {
		return err
	}
	out, err := c.i.client.Output(ctx, c.id, token, client.OutputOptions{Stream: "stdout", Offset: uint64(c.offset), Follow: true})
	if err != nil {
		return err
	}
	defer out.Close()
	lines := bufio.NewReader(out)
	for c.n < target {
		line, err := lines.ReadString('\n')
		if err != nil {
			return err // a broken line is read again from its start
		}
		c.n++
		c.offset += len(line)
		if line != strconv.Itoa(c.n)+"\n" {
			c.i.t.Fatalf("line %d is %q", c.n, line)
		}
	}
	return nil
}

// killUp kills space up itself and waits until its parts have ended.
func (i *installation) killUp() {
	i.t.Helper()
	if err := i.up.Process.Kill(); err != nil {
		i.t.Fatal(err)
	}
	<-i.ended
	for _, name := range []string{part.Control, part.Node, part.Gateway} {
		i.eventually(15*time.Second, name+" has ended", func() bool {
			_, runs := i.partPID(name)
			return !runs
		})
	}
}

// vmmPID is the QEMU process of a sandbox; it must run.
func (i *installation) vmmPID(id string) int {
	i.t.Helper()
	pid, ok := i.findVMM(id)
	if !ok {
		i.t.Fatalf("no VMM runs for %s", id)
	}
	return pid
}

// TestCutOffCreate kills control, then node, in the middle of a create: it is completed or ends as failed with nothing
// left, and the sandbox can be deleted.
func TestCutOffCreate(t *testing.T) {
	t.Parallel()
	i := install(t)
	i.start()
	for n, name := range []string{part.Control, part.Node, part.Gateway} {
		box := fmt.Sprintf("cut-%d", n)
		if _, err := i.client.CreateSandbox(t.Context(), apiv1.CreateSandbox{Template: "mini", Name: box}); err != nil {
			t.Fatal(err)
		}
		i.killPart(name)
		i.eventually(2*time.Minute, "the create of "+box+" has ended", func() bool {
			got, err := i.client.Sandbox(t.Context(), box)
			return err == nil && got.State != "creating"
		})
		got, err := i.client.Sandbox(t.Context(), box)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("killed %s during create: %s", name, got.State)
		if got.State == "failed" {
			if pid, runs := i.findVMM(got.ID); runs {
				t.Errorf("the failed sandbox still has VMM %d", pid)
			}
		}
		i.delete(box)
	}
	i.noMachines()
}

// TestDeleteIsFinishedAfterACrash kills control right after it accepted a delete.
func TestDeleteIsFinishedAfterACrash(t *testing.T) {
	t.Parallel()
	i := install(t)
	i.start()
	box := i.create(apiv1.CreateSandbox{})
	if _, err := i.client.DeleteSandbox(t.Context(), box.ID); err != nil {
		t.Fatal(err)
	}
	i.killPart(part.Control)
	i.eventually(time.Minute, "the sandbox is deleted", func() bool {
		_, err := i.client.Sandbox(t.Context(), box.ID)
		return client.Code(err) == "not_found"
	})
	if pid, runs := i.findVMM(box.ID); runs {
		t.Errorf("VMM %d is left", pid)
	}
	i.noMachines()
}

// TestVMMEndsByItself kills the VMM: the sandbox says why it failed and its commands are lost; delete works.
func TestVMMEndsByItself(t *testing.T) {
	t.Parallel()
	i := install(t)
	i.start()
	box := i.create(apiv1.CreateSandbox{})
	cmd, err := i.client.CreateCommand(t.Context(), box.ID, apiv1.CreateCommand{Argv: []string{"sleep", "600"}, Start: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(i.vmmPID(box.ID), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	i.eventually(30*time.Second, "the sandbox is failed", func() bool {
		got, err := i.client.Sandbox(t.Context(), box.ID)
		return err == nil && got.State == "failed" && got.Reason != nil && *got.Reason == "vmm_exit"
	})
	if got, err := i.client.WaitCommand(t.Context(), cmd.ID); err != nil || got.State != "lost" {
		t.Errorf("its command: %+v, %v", got, err)
	}
	i.delete(box.ID)
}
