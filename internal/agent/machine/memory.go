package machine

import (
	"fmt"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// What is kept from user processes, so that the agent goes on when they take all they can get, in bytes: a floor for
// the agent and the kernel, and a part of the machine's memory for the spools.
const (
	reserveFloor    = 24 << 20
	reserveFraction = 8
	maxReserve      = 256 << 20
)

// userMemory is how much of the machine's memory user processes may have together, in bytes.
func userMemory(total uint64) uint64 {
	reserve := reserveFloor + min(total/reserveFraction, maxReserve)
	return max(total/2, total-min(total, reserve))
}

// LimitAgentMemory makes the collector work harder before the agent's memory becomes a burden for the guest: at a
// quarter of the machine's, half of which may be spools.
func LimitAgentMemory() error {
	total, err := totalMemory()
	if err != nil {
		return err
	}
	debug.SetMemoryLimit(int64(total / 4))
	return nil
}

// totalMemory is the machine's memory, in bytes.
func totalMemory() (uint64, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, fmt.Errorf("sysinfo: %w", err)
	}
	return info.Totalram * uint64(info.Unit), nil
}
