package machine

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// How long user processes have to end by themselves, and how long the kernel has to end them.
const (
	termGrace = 2 * time.Second
	killGrace = 2 * time.Second
)

// Shutdown ends all processes, makes the disk clean and powers the machine off. It does not return.
func (m *Machine) Shutdown() {
	m.signalAll(unix.SIGTERM, termGrace)
	m.signalAll(unix.SIGKILL, killGrace)
	unix.Sync()
	if err := unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		m.log.Warn("the disk could not be made read-only", "error", err)
	}
	end(m.log, unix.LINUX_REBOOT_CMD_POWER_OFF)
}

// GiveUp ends a guest that cannot go on, after saying why on the console. It does not return.
func GiveUp(log *slog.Logger, reason error) {
	log.Error("the guest cannot go on", "error", reason)
	unix.Sync()
	end(log, unix.LINUX_REBOOT_CMD_RESTART) // a VMM is told not to start it again
}

// end leaves the machine to the kernel. Where that is refused, the end of PID 1 does the same with more noise.
func end(log *slog.Logger, command int) {
	err := unix.Reboot(command)
	log.Error("the kernel does not end the machine", "error", err)
	os.Exit(1)
}

// signalAll signals every process but this one and waits, at most grace, until the user group is empty.
func (m *Machine) signalAll(signal unix.Signal, grace time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	if err := unix.Kill(-1, signal); err != nil {
		if !errors.Is(err, unix.ESRCH) { // there is nobody
			m.log.Warn("end processes", "error", err)
		}
		return
	}
	if m.group == nil {
		<-ctx.Done()
		return
	}
	if err := waitEmpty(ctx, userGroup); err != nil {
		m.log.Warn("processes remain", "signal", int(signal), "error", err)
	}
}

// waitEmpty returns when no process is left in a cgroup and those below it, told by inotify.
func waitEmpty(ctx context.Context, group string) error {
	path := filepath.Join(group, "cgroup.events")
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return err
	}
	events := os.NewFile(uintptr(fd), "inotify")
	defer events.Close()
	if _, err := unix.InotifyAddWatch(fd, path, unix.IN_MODIFY); err != nil {
		return err
	}
	if deadline, ok := ctx.Deadline(); ok {
		if err := events.SetReadDeadline(deadline); err != nil {
			return err
		}
	}
	buf := make([]byte, 4096)
	for {
		state, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if bytes.Contains(state, []byte("populated 0")) {
			return nil
		}
		if _, err := events.Read(buf); err != nil {
			return err
		}
	}
}
