package confine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// StopUID stops every process of a uid and returns when none of their threads runs. The uid must not be anybody else's.
// Root and our own uid are refused.
func StopUID(ctx context.Context, uid uint32) error {
	if err := checkOthers(uid); err != nil {
		return err
	}
	told := map[int]bool{}
	return retry(ctx, func() (bool, error) {
		moving := 0
		err := eachOf(uid, func(pid, pidfd int) error {
			if still(pid, told[pid]) {
				return nil
			}
			moving++
			told[pid] = true
			return signal(pidfd, unix.SIGSTOP)
		})
		return moving == 0, err
	})
}

// ContinueUID lets every process of a uid go on, and returns when none is stopped. Others than StopUID may have stopped
// them: they go on too.
func ContinueUID(ctx context.Context, uid uint32) error {
	if err := checkOthers(uid); err != nil {
		return err
	}
	told := map[int]bool{}
	return retry(ctx, func() (bool, error) {
		stopped := 0
		err := eachOf(uid, func(pid, pidfd int) error {
			_, state, err := startTime(pid)
			if err != nil || told[pid] && state != 'T' {
				return nil
			}
			stopped++
			told[pid] = true
			return signal(pidfd, unix.SIGCONT)
		})
		return stopped == 0, err
	})
}

func checkOthers(uid uint32) error {
	if uid == 0 || int(uid) == os.Getuid() {
		return fmt.Errorf("confine: the processes of uid %d are not only those of a machine", uid)
	}
	return nil
}

// still reports whether no thread of a process runs. One that waits in the kernel and cannot be interrupted stops before
// it comes back, once the process has been told to: it may wait for a child that is stopped already.
func still(pid int, told bool) bool {
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return true // it has ended
	}
	for _, t := range tasks {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/stat", pid, t.Name()))
		if err != nil {
			continue // it has ended
		}
		_, state, err := parseStat(data)
		if err != nil {
			return false
		}
		switch state {
		case 'T', 't', 'Z', 'X':
		case 'D':
			if !told {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// eachOf calls f for every process of a uid, with a descriptor that stands for it and no later one.
func eachOf(uid uint32, f func(pid, pidfd int) error) error {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		if err := withProcess(pid, uid, f); err != nil {
			return err
		}
	}
	return nil
}

// withProcess asks for the uid after it has the process's descriptor, so that no later process is signalled.
func withProcess(pid int, uid uint32, f func(pid, pidfd int) error) error {
	if own, err := uidOf(pid); err != nil || own != uid {
		return nil
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil // it has ended
	}
	defer unix.Close(fd)
	_, state, err := startTime(pid)
	if err != nil || state == 'Z' || state == 'X' {
		return nil
	}
	if own, err := uidOf(pid); err != nil || own != uid {
		return nil
	}
	return f(pid, fd)
}

func signal(pidfd int, sig unix.Signal) error {
	if err := unix.PidfdSendSignal(pidfd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("confine: signal %v: %w", sig, err)
	}
	return nil
}
