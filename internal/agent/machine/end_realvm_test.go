//go:build realvm

package machine_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
)

// waitEnd waits until the machine has ended.
func (g *guest) waitEnd(t *testing.T) {
	t.Helper()
	select {
	case err := <-g.ended:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(bootDeadline):
		t.Fatal("the machine did not end")
	}
}

func (g *guest) consoleText(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(g.console)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestShutdownLeavesACleanDisk ends a machine in which a process ignores the request to end, then boots its disk again.
func TestShutdownLeavesACleanDisk(t *testing.T) {
	t.Parallel()
	spec := guestSpec{memoryMiB: 256, image: probeImage(t, nil), imageMiB: 64, diskMiB: 512}
	g := boot(t, spec)
	g.waitReady(t)
	g.spawn(t, "stay")
	if _, err := g.agent.Shutdown(t.Context(), connect.NewRequest(&agentv1.ShutdownRequest{})); err != nil {
		t.Fatal(err)
	}
	g.waitEnd(t)
	if out, err := exec.Command("e2fsck", "-f", "-n", g.disk).CombinedOutput(); err != nil {
		t.Errorf("e2fsck: %v:\n%s", err, out)
	}
	dump, err := exec.Command("dumpe2fs", "-h", g.disk).CombinedOutput()
	if err != nil || strings.Contains(string(dump), "needs_recovery") {
		t.Errorf("the disk was not unmounted cleanly (%v):\n%s", err, dump)
	}
	if used := allocated(t, g.disk); used > 16<<20 {
		t.Errorf("the disk takes %d bytes of the host, although next to nothing is on it", used)
	}
	g.start(t, spec)
	g.waitReady(t)
}

// allocated is how much of a sparse file is really there, in bytes.
func allocated(t *testing.T, path string) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

// TestGuestWithoutAFileSystemSaysWhy boots a disk that is not ext4: the machine ends by itself.
func TestGuestWithoutAFileSystemSaysWhy(t *testing.T) {
	t.Parallel()
	spec := guestSpec{memoryMiB: 256, image: t.TempDir(), imageMiB: 64, diskMiB: 64}
	g := prepare(t, spec)
	if err := os.WriteFile(g.disk, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	g.start(t, spec)
	g.waitEnd(t)
	if text := g.consoleText(t); !strings.Contains(text, "mount /dev/vda as ext4") {
		t.Errorf("the console does not say why:\n%s", text)
	}
}
