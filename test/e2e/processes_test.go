//go:build realvm

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
)

// TestProcesses does with processes what a good guest would not: afterwards the sandbox works as before.
func TestProcesses(t *testing.T) {
	t.Parallel()
	i := install(t)
	i.start()
	i.create(apiv1.CreateSandbox{Name: "procs"})
	for _, c := range []struct {
		name string
		test func(*testing.T, *installation)
	}{{"every byte", testEveryByte}, {"orphans", testOrphans}, {"zombies", testZombies}, {"deaf", testDeaf}, {"fork bomb", testForkBomb}} {
		t.Run(c.name, func(t *testing.T) {
			c.test(t, i)
			if got := i.sh("procs", "echo well"); got != "well\n" {
				t.Errorf("afterwards: %q", got)
			}
		})
	}
	i.delete("procs")
}

// testOrphans: whoever leaves processes behind does not wait for them, and they are nobody's zombies when they end.
func testOrphans(t *testing.T, i *installation) {
	fork := "import os, sys\nif os.fork() == 0:\n"
	for name, argv := range map[string][]string{
		"orphan": {"sh", "-c", "sleep 1001 & echo left"},
		"double fork": {"python3", "-c", fork + " if os.fork() == 0: os.execlp('sleep', 'sleep', '1002')\n" +
			" os._exit(0)\nos.wait()\nprint('left')"},
		"setsid": {"python3", "-c", fork + " os.setsid(); os.execlp('sleep', 'sleep', '1003')\nprint('left')"},
		"daemon": {"python3", "-c", fork + " os.setsid()\n if os.fork() == 0:\n  os.closerange(0, 100); os.execlp('sleep', 'sleep', '1004')\n" +
			" os._exit(0)\nos.wait()\nprint('left')"},
	} {
		res := i.exec("procs", apiv1.Exec{Argv: argv})
		if res.State != "exited" || *res.ExitCode != 0 || res.Stdout != "left\n" {
			t.Errorf("%s: %+v", name, res)
		}
	}
	left := i.processes("sleep 100")
	if len(left) != 4 {
		t.Errorf("left: %q, want 4", left)
	}
	for pid := range left {
		i.sh("procs", "kill "+pid)
	}
	i.eventually(time.Minute, "the orphans are gone", func() bool { return len(i.processes("sleep 100")) == 0 && i.zombies() == 0 })
}

// testZombies: what a process does not wait for while it runs is collected when it is gone.
func testZombies(t *testing.T, i *installation) {
	made, err := i.client.CreateCommand(t.Context(), "procs", apiv1.CreateCommand{Start: true,
		Argv: []string{"sh", "-c", "for n in 1 2 3 4 5 6 7 8 9 10; do true & done; exec sleep 1000"}})
	if err != nil {
		t.Fatal(err)
	}
	i.eventually(30*time.Second, "there are ten zombies", func() bool { return i.zombies() == 10 })
	if _, err := i.client.Kill(t.Context(), made.ID); err != nil {
		t.Fatal(err)
	}
	got, err := i.client.WaitCommand(t.Context(), made.ID)
	if err != nil || got.Signal == nil || *got.Signal != "SIGKILL" {
		t.Errorf("%+v, %v", got, err)
	}
	i.eventually(30*time.Second, "the zombies are gone", func() bool { return i.zombies() == 0 })
}

// testDeaf: SIGTERM does nothing to a process that ignores it, DELETE ends it.
func testDeaf(t *testing.T, i *installation) {
	made, err := i.client.CreateCommand(t.Context(), "procs", apiv1.CreateCommand{Start: true,
		Argv: []string{"sh", "-c", "trap '' TERM HUP INT QUIT; touch deaf; while :; do sleep 1; done"}})
	if err != nil {
		t.Fatal(err)
	}
	i.sh("procs", "until [ -e deaf ]; do sleep 0.1; done")
	if _, err := i.client.Signal(t.Context(), made.ID, "SIGTERM"); err != nil {
		t.Fatal(err)
	}
	if got, err := i.client.Command(t.Context(), made.ID); err != nil || got.State != "running" {
		t.Errorf("after SIGTERM: %+v, %v", got, err)
	}
	if _, err := i.client.Kill(t.Context(), made.ID); err != nil {
		t.Fatal(err)
	}
	if got, err := i.client.WaitCommand(t.Context(), made.ID); err != nil || got.Signal == nil || *got.Signal != "SIGKILL" {
		t.Errorf("after DELETE: %+v, %v", got, err)
	}
}

// testForkBomb: the bomb reaches the limit on processes and no further, calls are answered meanwhile, and DELETE ends
// all of it. The limit is made lower, for the hundreds that are allowed take an emulated machine minutes.
func testForkBomb(t *testing.T, i *installation) {
	i.exec("procs", apiv1.Exec{Argv: []string{"sh", "-c", "echo 60 > /sys/fs/cgroup/user/pids.max"}, User: "root"})
	made, err := i.client.CreateCommand(t.Context(), "procs", apiv1.CreateCommand{Start: true, Stdin: true,
		Argv: []string{"sh", "-c", "bomb() { while :; do bomb & done; }; bomb & read forever"}})
	if err != nil {
		t.Fatal(err)
	}
	i.eventually(3*time.Minute, "the limit is reached", func() bool { return i.refusedForks() > 0 })
	if res := i.exec("procs", apiv1.Exec{Argv: []string{"true"}}); res.State != "exited" && res.State != "failed" {
		t.Errorf("a command meanwhile: %+v", res)
	}
	if _, err := i.client.Kill(t.Context(), made.ID); err != nil {
		t.Fatal(err)
	}
	if got, err := i.client.WaitCommand(t.Context(), made.ID); err != nil || got.Signal == nil || *got.Signal != "SIGKILL" {
		t.Errorf("after DELETE: %+v, %v", got, err)
	}
	i.eventually(time.Minute, "the bomb is gone", func() bool { return len(i.processes("bomb()")) == 0 && i.zombies() == 0 })
}

// refusedForks is how often the limit on the sandbox's processes was in the way. No process is started to find out.
func (i *installation) refusedForks() (n int) {
	i.t.Helper()
	f, err := i.client.ReadFile(i.t.Context(), "procs", "/sys/fs/cgroup/user/pids.events", client.FileOptions{User: "root"})
	if err != nil {
		i.t.Fatal(err)
	}
	defer f.Close()
	if _, err := fmt.Fscanf(f, "max %d\n", &n); err != nil {
		i.t.Fatal(err)
	}
	return n
}

// processes are the command lines, by pid, of the sandbox's processes that begin with a text or have it after "sh -c ".
func (i *installation) processes(begin string) map[string]string {
	i.t.Helper()
	all := i.sh("procs", "head -v -c 200 /proc/[0-9]*/cmdline 2>/dev/null; true")
	found := map[string]string{}
	for entry := range strings.SplitSeq(all, "==> /proc/") {
		pid, command, _ := strings.Cut(entry, "/cmdline <==\n")
		command = strings.ReplaceAll(strings.TrimSpace(command), "\x00", " ")
		if strings.HasPrefix(strings.TrimPrefix(command, "sh -c "), begin) {
			found[pid] = command
		}
	}
	return found
}

// zombies is how many processes of the sandbox nobody has waited for.
func (i *installation) zombies() int {
	i.t.Helper()
	return strings.Count(i.sh("procs", "cat /proc/[0-9]*/stat 2>/dev/null; true"), ") Z ")
}

// everyByte has each byte value that text can have: NUL cannot be in an argument, and some bytes never are in UTF-8.
func everyByte() string {
	var b strings.Builder
	for r := rune(1); r < 0x800; r++ {
		b.WriteRune(r)
	}
	for r := rune(0x800); r <= 0x10ffff; r += 0x7ff {
		if r < 0xd800 || r > 0xdfff {
			b.WriteRune(r)
		}
	}
	return b.String()
}
