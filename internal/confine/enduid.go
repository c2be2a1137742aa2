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

// EndUID kills every process of a uid and returns when none runs. It is for processes that no control group holds
// together; the uid must not be anybody else's. Root and our own uid are refused.
func EndUID(ctx context.Context, uid uint32) error {
	if uid == 0 || int(uid) == os.Getuid() {
		return fmt.Errorf("confine: the processes of uid %d are not only those of a machine", uid)
	}
	return retry(ctx, func() (bool, error) {
		running, err := killUID(uid)
		return running == 0, err
	})
}

// killUID signals every process of the uid once and counts those that ran.
func killUID(uid uint32) (running int, err error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, err
	}
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		killed, err := killIfOf(pid, uid)
		if err != nil {
			return running, err
		}
		if killed {
			running++
		}
	}
	return running, nil
}

// killIfOf asks for the uid after it has the process's descriptor, so that no later process is signalled.
func killIfOf(pid int, uid uint32) (bool, error) {
	if own, err := uidOf(pid); err != nil || own != uid {
		return false, nil
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false, nil // it has ended
	}
	defer unix.Close(fd)
	_, state, err := startTime(pid)
	if err != nil || state == 'Z' || state == 'X' {
		return false, nil
	}
	if own, err := uidOf(pid); err != nil || own != uid {
		return false, nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return false, fmt.Errorf("confine: killing %d: %w", pid, err)
	}
	return true, nil
}
