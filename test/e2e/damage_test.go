//go:build realvm

package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
)

// replaceShell puts garbage, then a program that prints without end, in the place of the shells, sets the clock to two
// other centuries, and ends in a panic of the kernel.
func replaceShell(h *hostile) {
	h.sh(`rm -f /bin/sh /bin/bash; head -c 100000 /dev/urandom > /bin/sh; cp /bin/sh /bin/bash; chmod 755 /bin/sh /bin/bash`)
	for _, shell := range []string{"sh", "bash"} {
		res, err := h.root(shell, "-c", "true")
		if err == nil && (res.State != "failed" || res.Error == nil || res.Error.Code != "start_failed") {
			h.t.Errorf("garbage as %s: %+v", shell, res)
		}
	}
	h.works()
	h.sh(`cp /saboteur /bin/sh; cp /saboteur /bin/bash`)
	began := time.Now()
	var res *apiv1.ExecResult
	err := h.bounded("a shell that prints without end", func(ctx context.Context) (err error) {
		res, err = h.i.client.Exec(ctx, h.ref, apiv1.Exec{Argv: []string{"sh", "-c", "true"}, TimeoutSeconds: 2})
		return err
	})
	if err != nil || res.Error == nil || res.Error.Code != "deadline_exceeded" || len(res.Stdout) > 1<<20 || len(res.Stdout) < 1<<10 {
		h.t.Errorf("a shell that prints without end: %v after %v", err, time.Since(began))
	}
	h.works()
	for _, clock := range []string{"@86400", "@4102444800"} { // 1970, 2100
		h.sh("date -s " + clock)
		checkTimes(h)
	}
	h.start("/bin/dash", "-c", "echo c > /proc/sysrq-trigger")
	h.ends("guest_reboot")
}

// checkTimes: the record stays in this century, and in order, whatever the guest's clock says.
func checkTimes(h *hostile) {
	h.t.Helper()
	before := time.Now().Add(-time.Second)
	res, err := h.root("date", "+%Y")
	after := time.Now().Add(time.Second)
	if err != nil || res.StartedAt == nil || res.EndedAt == nil {
		h.t.Fatalf("with a wrong clock: %+v, %v", res, err)
	}
	if year := strings.TrimSpace(res.Stdout); year != "1970" && year != "2100" {
		h.t.Errorf("the guest's clock was not changed: %s", year)
	}
	for _, at := range []time.Time{res.CreatedAt, *res.StartedAt, *res.EndedAt} {
		if at.Before(before) || at.After(after) {
			h.t.Errorf("the record says %v between %v and %v", at, before, after)
		}
	}
	if res.StartedAt.Before(res.CreatedAt) || res.EndedAt.Before(*res.StartedAt) {
		h.t.Errorf("created %v, started %v, ended %v", res.CreatedAt, res.StartedAt, res.EndedAt)
	}
}

// fillDisk takes all bytes, then all inodes, and reboots.
func fillDisk(h *hostile) {
	h.sh(`dd if=/dev/zero of=/fill bs=1M 2>/dev/null; dd if=/dev/zero of=/fill2 bs=1k 2>/dev/null; sync; true`)
	big := strings.Repeat("x", 1<<20)
	err := h.bounded("write", func(ctx context.Context) error {
		_, err := h.i.client.WriteFile(ctx, h.ref, "/half", strings.NewReader(big), client.FileOptions{User: "0", Size: int64(len(big))})
		return err
	})
	if client.Code(err) != "guest_disk_full" {
		h.t.Errorf("a file onto a full disk: %v", err)
	}
	noHalfFile(h)
	h.works()
	h.sh(`rm /fill /fill2; mkdir /many; cd /many; /saboteur inodes`)
	err = h.bounded("write", func(ctx context.Context) error {
		_, err := h.i.client.WriteFile(ctx, h.ref, "/half", strings.NewReader("x"), client.FileOptions{User: "0"})
		return err
	})
	if client.Code(err) != "guest_disk_full" {
		h.t.Errorf("a file without an inode for it: %v", err)
	}
	noHalfFile(h)
	h.works()
	h.start("/saboteur", "reboot")
	h.ends("guest_reboot")
}

func noHalfFile(h *hostile) {
	h.t.Helper()
	for name := range strings.FieldsSeq(h.sh("ls -A /")) {
		if strings.Contains(name, "half") || strings.HasPrefix(name, ".") {
			h.t.Errorf("left of a file that did not fit: %q", name)
		}
	}
}

// tamper breaks every file that the agent has anything to do with, then the control group in which it starts processes.
func tamper(h *hostile) {
	h.sh(`head -c 5000 /dev/urandom > /etc/passwd; head -c 5000 /dev/urandom > /etc/group; rm -rf /etc/resolv.conf /etc/hostname /etc/hosts; mkfifo /etc/resolv.conf`)
	h.works()
	h.sh("rm /etc/passwd && mkfifo /etc/passwd && { sleep 5; rm /etc/passwd; } >/dev/null 2>&1 &")
	if err := h.bounded("stat", func(ctx context.Context) error {
		_, err := h.i.client.StatFile(ctx, h.ref, "/", client.StatOptions{User: "0"})
		return err
	}); client.Code(err) != "invalid_state" {
		h.t.Errorf("a pipe as user database: %v", err)
	}
	h.eventually("the pipe is gone", func() bool {
		res, err := h.root("/usr/bin/true")
		return err == nil && res.State == "exited"
	})
	h.start("/bin/dash", "-c", "echo 0 > /sys/fs/cgroup/cgroup.procs; echo 0 > /sys/fs/cgroup/user/pids.max; sleep 5; echo max > /sys/fs/cgroup/user/pids.max")
	h.probe()
	h.eventually("processes may be made again", func() bool {
		res, err := h.root("/usr/bin/true")
		return err == nil && res.State == "exited"
	})
	// From outside the group it freezes, so that it can thaw it again.
	h.start("/bin/dash", "-c", `echo 0 > /sys/fs/cgroup/cgroup.procs; echo 1 > /sys/fs/cgroup/user/cgroup.freeze
		sleep 18; echo 0 > /sys/fs/cgroup/user/cgroup.freeze`)
	h.probe()
	h.eventually("it is thawed", func() bool {
		res, err := h.root("/usr/bin/true")
		return err == nil && res.State == "exited"
	})
	h.sh("/saboteur unmount") // /proc, /sys, /dev
	h.probe()
}

// freezeAgent puts PID 1 into a control group and freezes it.
func freezeAgent(h *hostile) {
	id := h.start("/bin/dash", "-c", `kill -STOP 1; mkdir /sys/fs/cgroup/ice && echo 1 > /sys/fs/cgroup/ice/cgroup.procs && echo 1 > /sys/fs/cgroup/ice/cgroup.freeze; sleep 600`)
	h.silent(id)
}

// traceAgent stops PID 1 as a debugger does.
func traceAgent(h *hostile) {
	h.silent(h.start("/saboteur", "trace"))
}

// silent waits until the agent does not answer any more, then wants every call to say so in time.
func (h *hostile) silent(saboteur string) {
	h.t.Helper()
	h.eventually("the agent answers nothing", func() bool {
		if cmd, err := h.i.client.Command(h.t.Context(), saboteur); err == nil && cmd.Ended() {
			h.t.Fatalf("the saboteur could not do it: %s", h.stderr(saboteur))
		}
		ctx, cancel := context.WithTimeout(h.t.Context(), 8*time.Second)
		defer cancel()
		_, err := h.i.client.StatFile(ctx, h.ref, "/", client.StatOptions{User: "0"})
		return err != nil
	})
	for what, ok := range h.probe() {
		if ok {
			h.t.Errorf("%s succeeded without an agent", what)
		}
	}
}

// takeMemory takes all memory from outside the group that limits user processes.
func takeMemory(h *hostile) {
	h.start("/saboteur", "hog")
	h.survivesOrEnds()
}

// forkBomb forks without end, in the same place.
func forkBomb(h *hostile) {
	h.start("/bin/dash", "-c", `echo $$ > /sys/fs/cgroup/cgroup.procs; b() { b | b & }; b`)
	h.survivesOrEnds()
}

// survivesOrEnds: the kernel either finds a victim, or panics and so ends the machine. Calls end in time in both cases.
func (h *hostile) survivesOrEnds() {
	h.t.Helper()
	h.probe()
	got, err := h.i.client.Sandbox(h.t.Context(), h.ref)
	if err != nil || got.State != "running" && got.State != "failed" {
		h.t.Errorf("its sandbox: %+v, %v", got, err)
	}
	h.t.Logf("the sandbox is %s", got.State)
}

// lieForAgent takes the agent's address; from then on another program answers for it.
func lieForAgent(h *hostile) {
	id := h.start("/saboteur", "lie")
	token, err := h.i.client.AttachToken(h.t.Context(), id)
	if err != nil {
		h.t.Fatal(err)
	}
	lied := false
	for deadline := time.Now().Add(2 * hostileLimit); !lied && time.Now().Before(deadline); {
		ctx, cancel := context.WithTimeout(h.t.Context(), hostileLimit)
		res, err := h.i.client.Exec(ctx, h.ref, apiv1.Exec{Argv: []string{"/usr/bin/true"}, User: "0"})
		cancel()
		lied = err == nil && res.ExitCode != nil && *res.ExitCode == 7
	}
	if !lied {
		h.t.Fatal("the agent's address could not be taken")
	}
	checkLies(h.t, h, token, id)
}

func checkLies(t *testing.T, h *hostile, token *apiv1.Attach, id string) {
	for what, ok := range h.probe() {
		if ok && what != "exec" && what != "command" && what != "read" { // these it may pretend
			t.Errorf("%s believed a lie", what)
		}
	}
	before := time.Now().Add(-time.Second)
	res, err := h.root("/usr/bin/true")
	if err != nil || len(res.Stdout) > 1<<20 || res.EndedAt == nil || res.EndedAt.Before(before) || res.EndedAt.After(time.Now()) {
		t.Errorf("a command that never ran: state %v, ended %v, %v", res.State, res.EndedAt, err)
	}
	if err := h.bounded("signal", func(ctx context.Context) error {
		_, err := h.i.client.Signal(ctx, id, "SIGTERM")
		return err
	}); err == nil {
		t.Error("signal believed a lie")
	}
	// Output without an end is passed on as it comes: the client decides how much it takes.
	ctx, cancel := context.WithTimeout(t.Context(), hostileLimit)
	defer cancel()
	out, err := h.i.client.Output(ctx, id, token, client.OutputOptions{Stream: "stdout", Follow: true})
	if err != nil {
		t.Errorf("output: %v", err)
		return
	}
	defer out.Close()
	if _, err := out.Read(make([]byte, 1<<20)); err != nil {
		t.Errorf("output: %v", err)
	}
}
