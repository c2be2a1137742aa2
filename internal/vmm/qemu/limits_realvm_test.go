//go:build realvm

package qemu_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/space-sandbox/space/internal/confine"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/vmm"
)

func (l *lab) boot(t *testing.T, spec vmm.Spec) vmm.Machine {
	t.Helper()
	m, err := l.driver(t).Boot(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Kill(bounded(t)); err != nil {
			t.Error(err)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// TestConfinement looks at a running QEMU (with two vCPUs) from outside.
func TestConfinement(t *testing.T) {
	l := newLab(t)
	parts := l.machine(t)
	parts.Spec.VCPUs = 2
	m := l.boot(t, parts.Spec)
	if err := parts.Hello(bounded(t)); err != nil {
		t.Fatal(err)
	}
	proc := fmt.Sprintf("/proc/%d", m.State().Process.PID)
	threads, err := filepath.Glob(proc + "/task/*/status")
	if err != nil || len(threads) < 3 {
		t.Fatalf("threads: %v %v", threads, err)
	}
	for _, thread := range threads {
		data, err := os.ReadFile(thread)
		if err != nil {
			continue // an I/O thread that has ended
		}
		status := strings.Join(strings.Fields(string(data)), " ")
		uid := fmt.Sprint(parts.Spec.UID)
		for _, want := range []string{"Uid: " + strings.Repeat(uid+" ", 4), "NoNewPrivs: 1", "Seccomp: 2", "CapEff: 0000000000000000",
			"CapPrm: 0000000000000000", "Groups: NStgid"} {
			if !strings.Contains(status, want) {
				t.Errorf("%s lacks %q: %s", thread, want, status)
			}
		}
	}
	for _, ns := range []string{"net", "ipc", "mnt"} {
		its, err1 := os.Readlink(proc + "/ns/" + ns)
		ours, err2 := os.Readlink("/proc/self/ns/" + ns)
		if err1 != nil || err2 != nil || its == ours {
			t.Errorf("namespace %s: %s %s %v %v", ns, its, ours, err1, err2)
		}
	}
	interfaces, err := os.ReadFile(proc + "/net/dev")
	if err != nil || strings.Count(string(interfaces), "\n") != 3 {
		t.Errorf("interfaces: %v\n%s", err, interfaces)
	}
	devices, err := os.ReadDir(proc + "/root/dev")
	if err != nil || len(devices) != 5 {
		t.Errorf("devices: %v %v", devices, err)
	}
	for _, dir := range []string{"run", "tmp", "sys", "var"} {
		if left, err := os.ReadDir(proc + "/root/" + dir); err != nil || len(left) != 0 {
			t.Errorf("QEMU sees /%s: %v %v", dir, left, err)
		}
	}
	if score, err := os.ReadFile(proc + "/oom_score_adj"); err != nil || strings.TrimSpace(string(score)) != "500" {
		t.Errorf("oom score %q %v", score, err)
	}
	checkDescriptors(t, proc, parts.Spec)
	groups, err := os.ReadFile(proc + "/cgroup")
	if err != nil || strings.Count(string(groups), parts.Spec.Group.Path()) < 4 {
		t.Errorf("groups: %v\n%s", err, groups)
	}
	args, err := os.ReadFile(proc + "/cmdline")
	if err != nil || strings.Contains(string(args), l.token) {
		t.Errorf("the token is on the command line: %v", err)
	}
}

// checkDescriptors: QEMU has the machine's files and nothing else of ours.
func checkDescriptors(t *testing.T, proc string, spec vmm.Spec) {
	t.Helper()
	links, err := filepath.Glob(proc + "/fd/*")
	if err != nil || len(links) == 0 {
		t.Fatalf("descriptors: %v %v", links, err)
	}
	ours := map[string]bool{spec.Disk.Name(): true, "/dev/null": true, "/dev/net/tun": true}
	if kernel, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", spec.Kernel.Fd())); err == nil {
		ours[kernel] = true
	}
	for _, link := range links {
		target, err := os.Readlink(link)
		if err != nil || ours[target] {
			continue
		}
		known := false
		for _, prefix := range []string{"/memfd:ram", "/memfd:initrd", "/memfd:output", "socket:[", "anon_inode:", "pipe:["} {
			known = known || strings.HasPrefix(target, prefix)
		}
		if !known {
			t.Errorf("QEMU has %s open", target)
		}
	}
}

// TestGuestThatGivesUp: the end of the console says why.
func TestGuestThatGivesUp(t *testing.T) {
	l := newLab(t)
	parts := l.machine(t)
	initrd := file(t)(l.assets.OpenInitramfs()) // without the machine's boot configuration
	parts.Spec.Initrd = initrd
	m := l.boot(t, parts.Spec)
	e, err := m.Wait(bounded(t))
	if err != nil || e.Reason != sandbox.ReasonGuestReboot || !strings.Contains(e.Detail, "boot configuration") {
		t.Errorf("%+v %v", e, err)
	}
}

// TestOutOfMemory: a guest that needs more than its group may have ends with that reason.
func TestOutOfMemory(t *testing.T) {
	l := newLab(t)
	parts := l.machine(t)
	group, err := l.groups.Create("small", confine.Limits{MemoryBytes: 100 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := group.Remove(bounded(t)); err != nil {
			t.Error(err)
		}
	})
	parts.Spec.Group = group
	m, err := l.driver(t).Boot(t.Context(), parts.Spec)
	if err != nil {
		t.Fatalf("it did not even start: %v", err)
	}
	defer m.Close()
	e, err := m.Wait(bounded(t))
	if err != nil || e.Reason != sandbox.ReasonOOM {
		t.Errorf("%+v %v", e, err)
	}
}
