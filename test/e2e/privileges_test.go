//go:build realvm

package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/part"
)

// TestPrivileges reads from the kernel with which rights each process really runs.
func TestPrivileges(t *testing.T) {
	t.Parallel()
	i := install(t)
	i.start()
	box := i.create(apiv1.CreateSandbox{})
	inst := i.record()
	pid := func(name string) int {
		p, ok := i.partPID(name)
		if !ok {
			t.Fatalf("no process %s", name)
		}
		return p
	}
	qemu := i.vmmPID(box.ID)
	for name, want := range map[string]struct {
		pid      int
		uid      uint32
		caps     bool
		seccomp  string
		ownNet   bool
		ownMount bool
	}{
		"control": {pid: pid(part.Control), uid: inst.ControlUID, seccomp: "0"},
		"gateway": {pid: pid(part.Gateway), uid: inst.GatewayUID, seccomp: "0"},
		"node":    {pid: pid(part.Node), uid: 0, caps: true, seccomp: "0"},
		"qemu":    {pid: qemu, uid: i.uidOf(qemu), seccomp: "2", ownNet: true, ownMount: true},
	} {
		st := status(t, want.pid)
		if got := strings.Fields(st["Uid"]); got[0] != fmt.Sprint(want.uid) || got[1] != got[0] || got[2] != got[0] || got[3] != got[0] {
			t.Errorf("%s: uids %v, want %d", name, got, want.uid)
		}
		if st["NoNewPrivs"] != "1" || st["Seccomp"] != want.seccomp {
			t.Errorf("%s: NoNewPrivs %s, Seccomp %s", name, st["NoNewPrivs"], st["Seccomp"])
		}
		if none := st["CapEff"] == "0000000000000000"; none == want.caps {
			t.Errorf("%s: capabilities %s", name, st["CapEff"])
		}
		if groups := strings.Fields(st["Groups"]); !want.caps && len(groups) != 0 {
			t.Errorf("%s: supplementary groups %v", name, groups)
		}
		for ns, own := range map[string]bool{"net": want.ownNet, "mnt": want.ownMount} {
			if got := namespace(t, want.pid, ns) != namespace(t, os.Getpid(), ns); got != own {
				t.Errorf("%s: own %s namespace: %v, want %v", name, ns, got, own)
			}
		}
	}
	if uid := i.uidOf(qemu); uid < inst.UIDBase || uid >= inst.UIDBase+inst.UIDCount {
		t.Errorf("QEMU's uid %d is not of the installation's range", uid)
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", qemu))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(line), i.dir) {
		t.Errorf("QEMU is given a path of the data directory: %q", line)
	}
	for path, mode := range map[string]os.FileMode{"admin.key": 0o600, "control": 0o700, "node": 0o700} {
		info, err := os.Stat(i.dir + "/" + path)
		if err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v; want mode %v", path, info, err, mode)
		}
	}
}

func (i *installation) uidOf(pid int) uint32 {
	i.t.Helper()
	var uid uint32
	if _, err := fmt.Sscan(strings.Fields(status(i.t, pid)["Uid"])[0], &uid); err != nil {
		i.t.Fatal(err)
	}
	return uid
}

func status(t *testing.T, pid int) map[string]string {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := map[string]string{}
	for line := range strings.Lines(string(data)) {
		k, v, _ := strings.Cut(line, ":")
		fields[k] = strings.TrimSpace(v)
	}
	return fields
}

func namespace(t *testing.T, pid int, kind string) string {
	t.Helper()
	link, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
	if err != nil {
		t.Fatal(err)
	}
	return link
}
