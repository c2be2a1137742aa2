package confine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// RunningAs lists the processes whose uid is one of count from base on, with what Adopt needs to find each again but its
// control group. Processes that have ended and only wait to be reaped do not count.
func RunningAs(base, count uint32) ([]Identity, error) {
	boot, err := BootID()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("confine: list processes: %w", err)
	}
	var found []Identity
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		uid, err := uidOf(pid)
		if err == nil && (uid < base || uid-base >= count) {
			continue
		}
		var start uint64
		var state byte
		if err == nil {
			start, state, err = startTime(pid)
		}
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || state == 'Z' || state == 'X' {
			continue // it has ended
		}
		if err != nil {
			return nil, fmt.Errorf("confine: process %d: %w", pid, err)
		}
		found = append(found, Identity{PID: pid, StartTime: start, BootID: boot, UID: uid})
	}
	return found, nil
}
