package up

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/datadir"
	"github.com/space-sandbox/space/internal/part"
	"github.com/space-sandbox/space/internal/pool"
	"github.com/space-sandbox/space/internal/rpc"
	"github.com/space-sandbox/space/internal/sandbox"
)

// Clear is Down for an installation whose data directory cannot be opened: setup has not finished it, its record is
// damaged, or it was removed while it was in use. Of cfg.Dir only the path, the id and the uid range are known. What is
// left of the directory stays.
func Clear(ctx context.Context, cfg Config) error {
	if err := stopServing(ctx, cfg.Dir.GatewaySocket(), cfg.Logger); err != nil {
		return err
	}
	return clearKernel(ctx, cfg)
}

// clearKernel removes what an installation that does not run has in the kernel, whatever its data directory says: in a
// directory without records, every part that is found is one that no record names.
func clearKernel(ctx context.Context, cfg Config) error {
	blank, err := os.MkdirTemp("", "space-down-")
	if err != nil {
		return fmt.Errorf("clear: %w", err)
	}
	defer os.RemoveAll(blank) //nolint:errcheck // empty directories in /tmp
	empty := &datadir.Dir{Path: blank, Installation: cfg.Dir.Installation, RunRoot: cfg.Dir.RunRoot}
	empty.Installation.PoolKind = string(pool.KindCopy)
	if err := errors.Join(os.MkdirAll(empty.MachinesDir(), 0o700), os.Mkdir(empty.PoolDir(), 0o700), makeRunDir(empty.RunDir())); err != nil {
		return fmt.Errorf("clear: %w", err)
	}
	if err := part.Sweep(ctx, empty, cfg.Driver, cfg.Logger); err != nil {
		return fmt.Errorf("remove machines: %w", err)
	}
	return errors.Join(clearPool(ctx, cfg.Dir), os.RemoveAll(cfg.Dir.RunDir()))
}

func clearPool(ctx context.Context, dir *datadir.Dir) error {
	if _, err := os.Lstat(dir.PoolImage()); errors.Is(err, fs.ErrNotExist) {
		return pool.UnmountOrphan(dir.PoolDir())
	}
	if _, err := os.Lstat(dir.PoolDir()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return pool.UnmountImage(ctx, dir.PoolImage(), dir.PoolDir())
}

// stopPatience is how long a space up may take to end: its parts have stopGrace.
const stopPatience = 3 * stopGrace

// stopServing ends the space up that made the socket at path; nobody may listen there. The lock that names it may be
// gone with its directory, but the kernel remembers who called listen.
func stopServing(ctx context.Context, path string, logger *slog.Logger) error {
	pid, err := listenerOf(path)
	if err != nil || pid == 0 {
		return err
	}
	pidfd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("stop pid %d: %w", pid, err)
	}
	defer unix.Close(pidfd)
	// The pid may be another's by now: it must be a space up, and the socket still its.
	cmdline, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), "cmdline"))
	if again, againErr := listenerOf(path); err != nil || againErr != nil || again != pid || !strings.Contains(string(cmdline), "\x00up\x00") {
		return nil
	}
	logger.Info("stopping space up", "pid", pid)
	if err := unix.PidfdSendSignal(pidfd, unix.SIGTERM, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("stop pid %d: %w", pid, err)
	}
	return waitPidfd(ctx, pidfd, pid)
}

// waitPidfd waits for a process to end, at most stopPatience.
func waitPidfd(ctx context.Context, pidfd, pid int) error {
	for deadline := time.Now().Add(stopPatience); time.Now().Before(deadline); {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 200)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for pid %d: %w", pid, err)
		}
		if n > 0 {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "space up does not end",
		Cause: fmt.Sprintf("pid %d still runs %v after SIGTERM", pid, stopPatience), Remedy: fmt.Sprintf("end it with: kill -9 %d, then try again", pid)}
}

// listenerOf returns the process that made the listening socket at path; 0 when nobody listens there.
func listenerOf(path string) (int, error) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("who serves %s: %w", path, err)
	}
	defer c.Close()
	cred, err := rpc.PeerCred(c)
	if err != nil {
		return 0, fmt.Errorf("who serves %s: %w", path, err)
	}
	return int(cred.Pid), nil
}
