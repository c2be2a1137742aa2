//go:build realvm

package machine_test

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"connectrpc.com/connect"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
)

// TestDamagedJournal: a disk whose journal cannot be replayed still boots, to read what is on it, and is left as it is.
func TestDamagedJournal(t *testing.T) {
	t.Parallel()
	spec := guestSpec{memoryMiB: 256, image: probeImage(t, nil), imageMiB: 64, diskMiB: 128}
	g := boot(t, spec)
	g.waitReady(t)
	if _, err := g.agent.Shutdown(t.Context(), connect.NewRequest(&agentv1.ShutdownRequest{})); err != nil {
		t.Fatal(err)
	}
	g.waitEnd(t)
	damageJournal(t, g.disk)
	before, err := os.ReadFile(g.disk)
	if err != nil {
		t.Fatal(err)
	}
	g.start(t, spec)
	g.waitReady(t)
	text := g.consoleText(t)
	if !strings.Contains(text, "mounted read-only") {
		t.Error("the console does not say so")
	}
	after, err := os.ReadFile(g.disk)
	if err != nil {
		t.Fatal(err)
	}
	if string(before) != string(after) {
		t.Error("the disk has changed")
	}
}

// damageJournal makes the journal needed and unreadable.
func damageJournal(t *testing.T, disk string) {
	t.Helper()
	debugfs := func(args ...string) string {
		t.Helper()
		out, err := exec.Command("debugfs", append(args, disk)...).CombinedOutput()
		if err != nil {
			t.Fatalf("debugfs: %v: %s", err, out)
		}
		return string(out)
	}
	lines := strings.Split(strings.TrimSpace(debugfs("-R", "bmap <8> 0")), "\n")
	block, err := strconv.ParseInt(strings.TrimSpace(lines[len(lines)-1]), 10, 64)
	if err != nil {
		t.Fatalf("where the journal is: %v", err)
	}
	debugfs("-w", "-R", "feature needs_recovery")
	f, err := os.OpenFile(disk, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(make([]byte, 4096), block*4096); err != nil {
		t.Fatal(err)
	}
}
