package confine

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Errors of Adopt.
var (
	// ErrGone means that the process has ended, or that the host has booted since.
	ErrGone = errors.New("the process is gone")
	// ErrNotOurs means that a process with that pid runs but is not the one: another start time, uid or group.
	ErrNotOurs = errors.New("the pid belongs to another process")
)

// Adopt takes over a process that an earlier run of ours started. Its exit status cannot be known (unless it is a
// child of this very process): Wait says that it ended.
func Adopt(id Identity) (*Process, error) {
	if id.PID <= 1 {
		return nil, fmt.Errorf("confine: pid %d: %w", id.PID, ErrGone)
	}
	boot, err := BootID()
	if err != nil {
		return nil, err
	}
	if boot != id.BootID {
		return nil, fmt.Errorf("confine: pid %d of another boot: %w", id.PID, ErrGone)
	}
	// The descriptor comes first: what is verified after it is verified about this process and no later one.
	fd, err := unix.PidfdOpen(id.PID, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil, fmt.Errorf("confine: pid %d: %w", id.PID, ErrGone)
	}
	if err != nil {
		return nil, fmt.Errorf("confine: pidfd of %d: %w", id.PID, err)
	}
	pidfd := os.NewFile(uintptr(fd), "pidfd")
	if err := verify(id, pidfd); err != nil {
		pidfd.Close()
		return nil, err
	}
	var group *Group
	if id.Cgroup != "" {
		if group, err = groupAt(id.Cgroup); err != nil {
			pidfd.Close()
			return nil, err
		}
	}
	return watch(id, group, pidfd), nil
}

func verify(id Identity, pidfd *os.File) error {
	start, state, err := startTime(id.PID)
	if err != nil {
		return goneOr(err, id.PID)
	}
	uid, err := uidOf(id.PID)
	if err != nil {
		return goneOr(err, id.PID)
	}
	switch {
	case start != id.StartTime:
		return fmt.Errorf("confine: pid %d started at %d, not %d: %w", id.PID, start, id.StartTime, ErrNotOurs)
	case state == 'Z' || state == 'X':
		return fmt.Errorf("confine: pid %d: %w", id.PID, ErrGone)
	case uid != id.UID:
		return fmt.Errorf("confine: pid %d has uid %d, not %d: %w", id.PID, uid, id.UID, ErrNotOurs)
	}
	if id.Cgroup != "" {
		in, err := inCgroup(id.PID, id.Cgroup)
		if err != nil {
			return err
		}
		if !in {
			return fmt.Errorf("confine: pid %d is not in %s: %w", id.PID, id.Cgroup, ErrNotOurs)
		}
	}
	return nil
}

func goneOr(err error, pid int) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("confine: pid %d: %w", pid, ErrGone)
	}
	return err
}

// BootID names this boot of the host.
func BootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("boot id: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

// startTime reads fields 22 and 3 of /proc/PID/stat. The name in field 2 may contain anything, so fields are counted
// from the last parenthesis on.
func startTime(pid int) (ticks uint64, state byte, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, fmt.Errorf("start time: %w", err)
	}
	return parseStat(data)
}

func parseStat(data []byte) (ticks uint64, state byte, err error) {
	i := bytes.LastIndexByte(data, ')')
	fields := strings.Fields(string(data[i+1:]))
	if i < 0 || len(fields) < 20 {
		return 0, 0, errors.New("start time: unexpected form of stat")
	}
	ticks, err = strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("start time: %w", err)
	}
	state = fields[0][0]
	if len(fields[0]) != 1 || (state|0x20) < 'a' || (state|0x20) > 'z' {
		return 0, 0, errors.New("start time: unexpected state in stat")
	}
	return ticks, state, nil
}

func uidOf(pid int) (uint32, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("uid: %w", err)
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "Uid:"); ok {
			if f := strings.Fields(rest); len(f) == 4 {
				uid, err := strconv.ParseUint(f[0], 10, 32)
				return uint32(uid), err
			}
		}
	}
	return 0, errors.New("uid: unexpected form of status")
}

// inCgroup reports whether the process is in the group with that path in any hierarchy. A process that is gone is
// in none.
func inCgroup(pid int, path string) (bool, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("control group of %d: %w", pid, err)
	}
	for line := range strings.Lines(string(data)) {
		if strings.HasSuffix(strings.TrimSpace(line), "/"+path) {
			return true, nil
		}
	}
	return false, nil
}
