package up

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/datadir"
	"github.com/space-sandbox/space/internal/sandbox"
)

// Holder says who runs an installation; it is the content of the lock file.
type Holder = datadir.Holder

// lock is held by flock on the lock file for the life of Run.
type lock struct{ file *os.File }

// openLock opens the lock file, which only root may: whoever can open it, if only for reading, can take the lock, and
// then an up that ended long ago looks alive, its port is sent the first key and its pid a signal.
func openLock(d *datadir.Dir) (*os.File, error) {
	f, err := os.OpenFile(d.LockFile(), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if errors.Is(err, os.ErrPermission) {
		return nil, &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "cannot lock the data directory", Cause: err.Error(),
			Remedy: "run as root", Err: err}
	}
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if err := f.Chmod(0o600); err != nil { // whoever can open it can hold the lock
		return nil, errors.Join(fmt.Errorf("lock: %w", err), f.Close())
	}
	return f, nil
}

func acquireLock(d *datadir.Dir) (*lock, error) {
	f, err := openLock(d)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		h, _ := datadir.DecodeHolder(f) // what it says is only for the message
		err = &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "another space up runs on this data directory",
			Cause:  fmt.Sprintf("pid %d serves %s on %s", h.PID, d.Path, h.Listen),
			Remedy: "use it, or stop it with: space down --data-dir " + d.Path, Err: err}
		return nil, errors.Join(err, f.Close())
	}
	l := &lock{file: f}
	if err := l.describe("", ""); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return l, nil
}

// describe writes who holds the lock and where it serves.
func (l *lock) describe(listen, data string) error {
	text, err := json.Marshal(Holder{PID: os.Getpid(), Listen: listen, Data: data})
	if err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	if err := l.file.Truncate(0); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	if _, err := l.file.WriteAt(append(text, '\n'), 0); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	return nil
}

func (l *lock) release() { l.file.Close() }

// Running returns who runs the installation, and false when nobody does.
func Running(d *datadir.Dir) (Holder, bool, error) {
	f, err := openLock(d)
	if err != nil {
		return Holder{}, false, err
	}
	defer f.Close()
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if err == nil {
		return Holder{}, false, nil
	}
	if !errors.Is(err, syscall.EWOULDBLOCK) {
		return Holder{}, false, fmt.Errorf("lock: %w", err)
	}
	h, err := datadir.DecodeHolder(f)
	if err != nil {
		return h, true, fmt.Errorf("lock file %s: %w", d.LockFile(), err)
	}
	return h, true, nil
}

// Stop ends the up that runs the installation and waits until it has let go of the lock. No up is fine.
func Stop(d *datadir.Dir) error {
	h, running, err := Running(d)
	if err != nil || !running {
		return err
	}
	pidfd, err := unix.PidfdOpen(h.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("stop pid %d: %w", h.PID, err)
	}
	defer unix.Close(pidfd)
	if again, still, err := Running(d); err != nil || !still || again.PID != h.PID {
		return err // it ended in between, and the pid may be another's
	}
	if err := unix.PidfdSendSignal(pidfd, unix.SIGTERM, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("stop pid %d: %w", h.PID, err)
	}
	f, err := openLock(d)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("wait for space up to end: %w", err)
	}
	return nil
}
