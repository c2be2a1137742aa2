package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const (
	cgroupRoot = "/sys/fs/cgroup"
	userGroup  = cgroupRoot + "/user"
)

// minThreads is the least that user processes get.
const minThreads = 128

// makeGroups makes the cgroup of user processes. The agent stays in the root group, next to the kernel's threads.
func (b *booter) makeGroups(context.Context) error {
	available, err := os.ReadFile(filepath.Join(cgroupRoot, "cgroup.controllers"))
	if err != nil {
		return err
	}
	controllers := wantedControllers(string(available))
	if err := os.WriteFile(filepath.Join(cgroupRoot, "cgroup.subtree_control"), []byte(controllers), 0); err != nil {
		return fmt.Errorf("controllers %s: %w", controllers, err)
	}
	if err := os.Mkdir(userGroup, 0o755); err != nil {
		return err
	}
	if err := limitUserGroup(); err != nil {
		return err
	}
	b.group, err = os.Open(userGroup)
	return err
}

// wantedControllers gives those of the kernel's controllers that are used, as subtree_control takes them.
func wantedControllers(available string) string {
	var on []string
	for _, name := range []string{"cpu", "memory", "pids"} {
		if slices.Contains(strings.Fields(available), name) {
			on = append(on, "+"+name)
		}
	}
	return strings.Join(on, " ")
}

func limitUserGroup() error {
	memory, err := totalMemory()
	if err != nil {
		return err
	}
	threads, err := readNumber("/proc/sys/kernel/threads-max")
	if err != nil {
		return err
	}
	pids, err := readNumber("/proc/sys/kernel/pid_max")
	if err != nil {
		return err
	}
	for file, value := range map[string]uint64{
		"memory.max": userMemory(memory),
		"pids.max":   userThreads(min(threads, pids)),
	} {
		err := os.WriteFile(filepath.Join(userGroup, file), strconv.AppendUint(nil, value, 10), 0)
		if err != nil && !errors.Is(err, os.ErrNotExist) { // a kernel without this controller
			return err
		}
	}
	return nil
}

// userThreads is how many threads they may have together: half of what the kernel allows by the machine's memory, so
// that a program that forks without end reaches this bound, and an error, before it has taken all memory.
func userThreads(limit uint64) uint64 { return max(minThreads, limit/2) }

func readNumber(path string) (uint64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return n, nil
}
