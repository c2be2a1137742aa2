package confine

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	unifiedMounts = `24 1 0:22 / /proc rw - proc proc rw
30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate
`
	legacyMounts = `31 24 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
32 24 0:28 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
33 24 0:29 / /sys/fs/cgroup/pids rw shared:7 master:2 - cgroup pids rw,pids
34 24 0:30 / /sys/fs/cgroup/systemd rw - cgroup systemd rw,xattr,name=systemd
35 24 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
36 24 nonsense
`
)

func TestParseMounts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text string
		want []hierarchy
	}{
		"unified": {unifiedMounts, []hierarchy{{base: "/sys/fs/cgroup", unified: true}}},
		"hybrid": {legacyMounts, []hierarchy{
			{base: "/sys/fs/cgroup/cpu,cpuacct", controllers: []string{"cpu"}},
			{base: "/sys/fs/cgroup/memory", controllers: []string{"memory"}},
			{base: "/sys/fs/cgroup/pids", controllers: []string{"pids"}},
			{base: "/sys/fs/cgroup/unified", unified: true},
		}},
		"none": {"24 1 0:22 / /proc rw - proc proc rw\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, parseMounts([]byte(c.text)), cmp.AllowUnexported(hierarchy{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// controlFiles makes control files as a kernel would and returns a reader of all of them.
func controlFiles(t *testing.T, names ...string) (dir string, read func() map[string]string) {
	t.Helper()
	dir = t.TempDir()
	for _, n := range names {
		if err := os.WriteFile(filepath.Join(dir, n), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir, func() map[string]string {
		out := map[string]string{}
		for _, n := range names {
			data, err := os.ReadFile(filepath.Join(dir, n))
			if err != nil {
				t.Fatal(err)
			}
			out[n] = string(data)
		}
		return out
	}
}

// The host of the tests has only one kind of hierarchy; what is written to the other is checked on plain files.
func TestLimitsAreWritten(t *testing.T) {
	t.Parallel()
	limits := Limits{MemoryBytes: 1 << 30, CPUQuota: 1.5, PIDs: 64}
	all := wantedControllers()
	dir, read := controlFiles(t, "memory.max", "memory.swap.max", "cpu.max", "pids.max")
	if err := (groupDir{hierarchy{unified: true, controllers: all}, dir}).limit(limits); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"memory.max": "1073741824", "memory.swap.max": "0", "cpu.max": "150000 100000", "pids.max": "64"}
	if diff := cmp.Diff(want, read()); diff != "" {
		t.Errorf("v2:\n%s", diff)
	}
	dir, read = controlFiles(t, "memory.limit_in_bytes", "cpu.cfs_period_us", "cpu.cfs_quota_us", "pids.max")
	if err := (groupDir{hierarchy{controllers: all}, dir}).limit(limits); err != nil {
		t.Fatal(err)
	}
	want = map[string]string{"memory.limit_in_bytes": "1073741824", "cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "150000", "pids.max": "64"}
	if diff := cmp.Diff(want, read()); diff != "" {
		t.Errorf("v1:\n%s", diff)
	}
	if err := (groupDir{hierarchy{unified: true, controllers: []string{"cpu"}}, t.TempDir()}).limit(limits); err == nil {
		t.Error("a limit that cannot be written is no error")
	}
}

func TestOOMKillsAreFound(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, text string
		unified    bool
		want       bool
	}{
		{"memory.events", "low 0\nhigh 0\nmax 17\noom 1\noom_kill 1\n", true, true},
		{"memory.events", "low 0\nhigh 0\nmax 17\noom 1\noom_kill 0\n", true, false},
		{"memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", false, true},
		{"memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n", false, false},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, c.name), []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		g := &Group{path: "space-x/vm-y", dirs: []groupDir{{hierarchy{unified: c.unified, controllers: []string{"memory"}}, dir}}}
		if got, err := g.OOMKilled(); err != nil || got != c.want {
			t.Errorf("%s %q: %v %v", c.name, c.text, got, err)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("7 (a) b) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 0 0"))
	f.Add([]byte("7 (a"))
	f.Add([]byte(""))
	f.Fuzz(func(t *testing.T, data []byte) {
		ticks, state, err := parseStat(data)
		if err == nil && state == 0 {
			t.Errorf("%q: %d without a state", data, ticks)
		}
	})
}

func TestParseStat(t *testing.T) {
	t.Parallel()
	ticks, state, err := parseStat([]byte("7 (a) b) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 0 0"))
	if ticks != 4711 || state != 'S' || err != nil {
		t.Errorf("%d %c %v", ticks, state, err)
	}
}
