//go:build realvm

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
)

// TestCreateDeleteLeavesNothing makes and deletes 30 sandboxes, 5 at once, and compares everything the installation
// owns on the host before and after.
func TestCreateDeleteLeavesNothing(t *testing.T) {
	t.Parallel()
	const total, atOnce = 30, 5
	i := install(t)
	i.start()
	i.delete(i.create(apiv1.CreateSandbox{}).ID) // directories that are made once
	before := i.possessions()
	var g errgroup.Group
	g.SetLimit(atOnce)
	for range total {
		g.Go(func() error {
			mib := 128
			res, err := i.client.CreateSandbox(t.Context(), apiv1.CreateSandbox{Template: "mini", MemoryMiB: &mib}, client.Wait(5*60e9))
			if err != nil {
				return err
			}
			if res.Sandbox.State != "running" {
				return fmt.Errorf("sandbox %s is %s", res.Sandbox.ID, res.Sandbox.State)
			}
			_, err = i.client.DeleteSandbox(t.Context(), res.Sandbox.ID, client.Wait(60e9))
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(before, i.possessions()); d != "" {
		t.Errorf("after %d sandboxes (-before +after):\n%s", total, d)
	}
	i.noMachines()
	list, err := i.client.ListSandboxes(t.Context(), client.SandboxQuery{})
	if err != nil || len(list.Items) != 0 {
		t.Errorf("live sandboxes in the record: %+v, %v", list, err)
	}
}

// possessions lists what the installation owns on this host, by kind. Other installations do not show in it.
func (i *installation) possessions() map[string][]string {
	i.t.Helper()
	inst := i.id()
	all := map[string][]string{}
	note := func(kind string, items ...string) { all[kind] = append(all[kind], items...) }
	for _, pid := range pids(i.t) {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		owner, statErr := os.Stat(fmt.Sprintf("/proc/%d", pid))
		if err != nil || statErr != nil {
			continue
		}
		switch text := strings.ReplaceAll(string(line), "\x00", " "); {
		case strings.Contains(text, i.dir):
			note("processes", text)
		case i.ownsUID(owner):
			note("processes of VM uids", text)
		}
	}
	note("namespaces", glob(i.t, "/run/netns/space-"+inst+"-*")...)
	note("cgroups", glob(i.t, "/sys/fs/cgroup/*/space-"+inst+"/*")...)
	note("cgroups", glob(i.t, "/sys/fs/cgroup/space-"+inst+"/*")...)
	for _, root := range []string{"/run/space/" + inst, filepath.Join(i.dir, "node"), filepath.Join(i.dir, "pool")} {
		note("files", walk(i.t, root)...)
	}
	note("mounts", linesWith(i.t, "/proc/self/mounts", i.dir, "space-"+inst)...)
	note("loop devices", loops(i.t, i.dir)...)
	note("taps of the host", glob(i.t, "/sys/class/net/tap*")...)
	for _, part := range []string{"control", "node", "gateway"} {
		if pid, ok := i.partPID(part); ok {
			note("descriptors of "+part, descriptorKinds(i.t, pid)...)
		}
	}
	for _, items := range all {
		sort.Strings(items)
	}
	return all
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func walk(t *testing.T, root string) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		names = append(names, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func linesWith(t *testing.T, path string, words ...string) []string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(string(data)) {
		for _, w := range words {
			if strings.Contains(line, w) {
				out = append(out, line)
				break
			}
		}
	}
	return out
}

func loops(t *testing.T, dir string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "losetup", "--list", "--noheadings", "--output", "NAME,BACK-FILE").Output()
	if err != nil {
		t.Fatal(err)
	}
	var mine []string
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, dir) {
			mine = append(mine, strings.Join(strings.Fields(line), " ")) // the columns' width depends on others' devices
		}
	}
	return mine
}

// descriptorKinds lists what a process holds that must not grow with sandboxes: everything but sockets to clients, which
// come and go with connections that are kept alive, and the store's connections, of which there is a bounded pool.
func descriptorKinds(t *testing.T, pid int) []string {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, e := range entries {
		link, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, e.Name()))
		if err != nil || strings.HasPrefix(link, "socket:") || strings.Contains(link, "/space.db") {
			continue
		}
		kind, _, _ := strings.Cut(link, ":[")
		kinds = append(kinds, kind)
	}
	return kinds
}
