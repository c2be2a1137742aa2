package confine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Limits of a Group; zero means no limit.
type Limits struct {
	MemoryBytes int64
	CPUQuota    float64 // CPUs: 1.5 is one and a half
	PIDs        int64   // processes and threads; a start itself takes one for a moment, so at least 2
}

// Group is a control group made by this package: one directory in each hierarchy that has something to say. Safe for
// concurrent use. The zero value limits nothing and has no members.
type Group struct {
	path string // space-<installation>/<name>
	dirs []groupDir
}

type groupDir struct {
	hierarchy
	path string
}

// Path is the group's name including its installation, as in Identity.Cgroup.
func (g *Group) Path() string { return g.path }

// Name is the group's name within its installation.
func (g *Group) Name() string { return filepath.Base(g.path) }

// OOMKilled reports whether the kernel has killed a member because of the memory limit. It must be asked before
// Remove.
func (g *Group) OOMKilled() (bool, error) {
	for _, d := range g.dirs {
		if !slices.Contains(d.controllers, "memory") {
			continue
		}
		name := "memory.oom_control"
		if d.unified {
			name = "memory.events"
		}
		n, err := readKey(filepath.Join(d.path, name), "oom_kill")
		if err != nil {
			return false, fmt.Errorf("reading oom kills of %s: %w", g.path, err)
		}
		if n > 0 {
			return true, nil
		}
	}
	return false, nil
}

// Procs returns the pids of the members, without our own: a thread of ours may be in it for the moment of a start.
func (g *Group) Procs() ([]int, error) {
	seen := map[int]bool{}
	for _, d := range g.dirs {
		data, err := os.ReadFile(filepath.Join(d.path, "cgroup.procs"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("members of %s: %w", g.path, err)
		}
		for _, f := range strings.Fields(string(data)) {
			if pid, err := strconv.Atoi(f); err == nil && pid > 0 && pid != os.Getpid() {
				seen[pid] = true
			}
		}
	}
	pids := make([]int, 0, len(seen))
	for pid := range seen {
		pids = append(pids, pid)
	}
	slices.Sort(pids)
	return pids, nil
}

// Kill ends all members and returns when there are none.
func (g *Group) Kill(ctx context.Context) error {
	for _, d := range g.dirs {
		if slices.Contains(d.controllers, "pids") {
			// Nobody may fork while we count; where it fails the loop below still ends them.
			_ = os.WriteFile(filepath.Join(d.path, "pids.max"), []byte("0"), 0)
		}
	}
	return retry(ctx, func() (bool, error) {
		if err := g.killOnce(); err != nil {
			return false, err
		}
		pids, err := g.Procs()
		return len(pids) == 0, err
	})
}

func (g *Group) killOnce() error {
	for _, d := range g.dirs {
		if d.unified {
			// Kernels before 5.14 have no such file; the pids below do.
			_ = os.WriteFile(filepath.Join(d.path, "cgroup.kill"), []byte("1"), 0)
		}
	}
	pids, err := g.Procs()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if err := g.killMember(pid); err != nil {
			return err
		}
	}
	return nil
}

// killMember signals pid only if the process behind the descriptor is a member: not one that got the pid since, and
// not one of which a mere thread is in the group.
func (g *Group) killMember(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("pidfd of %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if in, err := inCgroup(pid, g.path); err != nil || !in {
		return err
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("killing %d: %w", pid, err)
	}
	return nil
}

// Remove kills the members, waits until they are gone and removes the group. It succeeds when there is none.
func (g *Group) Remove(ctx context.Context) error {
	if err := g.Kill(ctx); err != nil {
		return err
	}
	for _, d := range g.dirs {
		err := retry(ctx, func() (bool, error) {
			err := unix.Rmdir(d.path)
			if errors.Is(err, unix.EBUSY) { // it says so for a while after the last member has gone
				return false, nil
			}
			if errors.Is(err, unix.ENOENT) {
				return true, nil
			}
			return true, err
		})
		if err != nil {
			return fmt.Errorf("removing control group %s: %w", d.path, err)
		}
	}
	return nil
}

func (g *Group) create(limits Limits) error {
	for i, d := range g.dirs {
		if err := os.Mkdir(d.path, 0o755); err != nil {
			return errors.Join(fmt.Errorf("control group: %w", err), removeDirs(g.dirs[:i]))
		}
	}
	for _, d := range g.dirs {
		if err := d.limit(limits); err != nil {
			return errors.Join(err, removeDirs(g.dirs))
		}
	}
	return nil
}

func removeDirs(dirs []groupDir) error {
	var errs []error
	for _, d := range dirs {
		errs = append(errs, unix.Rmdir(d.path))
	}
	return errors.Join(errs...)
}

// retry calls f until it is done, fails or ctx ends, with growing pauses.
func retry(ctx context.Context, f func() (bool, error)) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		done, err := f()
		if done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// readKey reads the number after a key in a flat keyed file; a missing key or file is 0.
func readKey(path, key string) (int64, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == key {
			return strconv.ParseInt(f[1], 10, 64)
		}
	}
	return 0, nil
}
