package confine

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// cpuPeriod is the period in microseconds that CPU quotas are counted over: the kernel's own default.
const cpuPeriod = 100_000

// daemonsLeaf is the group of our own daemons below a delegated one; the unit names it too (DelegateSubgroup).
const daemonsLeaf = "daemons"

// hierarchy is one mounted tree of control groups and the place in it where our groups lie.
type hierarchy struct {
	base        string   // directory under which space-<installation> is made
	unified     bool     // cgroup v2
	delegated   bool     // base is our unit's, not the root
	controllers []string // those of wantedControllers it has
}

func wantedControllers() []string { return []string{"memory", "cpu", "pids"} }

// hierarchies lists the usable ones: v1 hierarchies with a wanted controller, and the v2 one even without any, for it
// knows its members best and can kill them at once.
func hierarchies() ([]hierarchy, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("finding control groups: %w", err)
	}
	var out []hierarchy
	for _, m := range parseMounts(data) {
		h := m
		if m.unified {
			h.base = delegated(m.base)
			h.delegated = h.base != m.base
			list, err := os.ReadFile(filepath.Join(h.base, "cgroup.controllers"))
			if err != nil {
				continue
			}
			h.controllers = wanted(strings.Fields(string(list)))
		}
		var st unix.Statfs_t
		if unix.Statfs(h.base, &st) != nil || st.Flags&unix.ST_RDONLY != 0 || unix.Access(h.base, unix.W_OK) != nil {
			continue
		}
		if (h.unified || len(h.controllers) > 0) && !slices.ContainsFunc(out, h.sameAs) {
			out = append(out, h)
		}
	}
	return out, nil
}

func (h hierarchy) sameAs(o hierarchy) bool {
	return h.unified == o.unified && slices.Equal(h.controllers, o.controllers)
}

// parseMounts finds cgroup mounts in the text of mountinfo. Only whole hierarchies count: of a mounted part we would
// not know how to name our groups after a restart.
func parseMounts(mountinfo []byte) []hierarchy {
	var out []hierarchy
	for s := bufio.NewScanner(bytes.NewReader(mountinfo)); s.Scan(); {
		before, after, ok := strings.Cut(s.Text(), " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 5 || len(g) < 3 {
			continue
		}
		switch g[0] {
		case "cgroup2":
			out = append(out, hierarchy{base: f[4], unified: true})
		case "cgroup":
			if c := wanted(strings.Split(g[2], ",")); len(c) > 0 {
				out = append(out, hierarchy{base: f[4], controllers: c})
			}
		}
	}
	return out
}

func wanted(have []string) []string {
	var out []string
	for _, c := range wantedControllers() {
		if slices.Contains(have, c) {
			out = append(out, c)
		}
	}
	return out
}

// delegated returns the control group that systemd has delegated to our unit, or the root: there our groups stay the
// same from whichever session SPACE is started.
func delegated(root string) string {
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return root
	}
	for line := range strings.Lines(string(data)) {
		own, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok {
			continue
		}
		for p := filepath.Clean(own); p != "/" && p != "."; p = filepath.Dir(p) {
			dir := filepath.Join(root, p)
			buf := make([]byte, 8)
			if n, err := unix.Getxattr(dir, "trusted.delegate", buf); err == nil && string(buf[:n]) == "1" {
				return dir
			}
		}
	}
	return root
}

// JoinDaemons moves the calling process into a leaf of its own where it stands in a control group (v2) that systemd has
// delegated to our unit: a group with processes in it cannot hand controllers down. Elsewhere, and when it is in the leaf
// already, it does nothing. Children started later are in the leaf too.
func JoinDaemons() error {
	h, err := hierarchies()
	if err != nil {
		return err
	}
	return joinLeaf(h)
}

func joinLeaf(all []hierarchy) error {
	for _, h := range all {
		if !h.delegated {
			continue
		}
		members, err := os.ReadFile(filepath.Join(h.base, "cgroup.procs"))
		if err != nil {
			return fmt.Errorf("control group of the daemons: %w", err)
		}
		self := strconv.Itoa(os.Getpid())
		if !slices.Contains(strings.Fields(string(members)), self) {
			continue
		}
		leaf := filepath.Join(h.base, daemonsLeaf)
		if err := os.MkdirAll(leaf, 0o755); err != nil {
			return fmt.Errorf("control group of the daemons: %w", err)
		}
		if err := writeFile(leaf, "cgroup.procs", self); err != nil {
			return err
		}
	}
	return nil
}

// prepare makes the installation's directory and hands the controllers down to it.
func (h hierarchy) prepare(parent string) error {
	dir := filepath.Join(h.base, parent)
	if h.unified {
		if err := h.enable(h.base); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("control group: %w", err)
	}
	if h.unified {
		return h.enable(dir)
	}
	return nil
}

func (h hierarchy) enable(dir string) error {
	for _, c := range h.controllers {
		if err := writeFile(dir, "cgroup.subtree_control", "+"+c); err != nil {
			return err
		}
	}
	return nil
}

// limit writes what of the limits this hierarchy controls.
func (d groupDir) limit(l Limits) error {
	for _, c := range d.controllers {
		var err error
		switch c {
		case "memory":
			err = d.limitMemory(l.MemoryBytes)
		case "cpu":
			err = d.limitCPU(l.CPUQuota)
		case "pids":
			if l.PIDs > 0 {
				err = writeFile(d.path, "pids.max", strconv.FormatInt(l.PIDs, 10))
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// limitMemory bounds memory with no swap on top of it: swapped guests would not be slower, but stuck.
func (d groupDir) limitMemory(bytes int64) error {
	if bytes <= 0 {
		return nil
	}
	text := strconv.FormatInt(bytes, 10)
	limit, swap, swapText := "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", text
	if d.unified {
		limit, swap, swapText = "memory.max", "memory.swap.max", "0"
	}
	if err := writeFile(d.path, limit, text); err != nil {
		return err
	}
	if err := writeFile(d.path, swap, swapText); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err // the file is missing where the kernel does not count swap
	}
	return nil
}

func (d groupDir) limitCPU(cpus float64) error {
	if cpus <= 0 {
		return nil
	}
	quota := strconv.FormatInt(max(1000, int64(cpus*cpuPeriod)), 10)
	if d.unified {
		return writeFile(d.path, "cpu.max", quota+" "+strconv.Itoa(cpuPeriod))
	}
	if err := writeFile(d.path, "cpu.cfs_period_us", strconv.Itoa(cpuPeriod)); err != nil {
		return err
	}
	return writeFile(d.path, "cpu.cfs_quota_us", quota)
}

// writeFile writes a control file, which the kernel takes in one write and never creates.
func writeFile(dir, name, text string) error {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("control group: %w", err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		return fmt.Errorf("control group: %w", err)
	}
	return nil
}
