package setup

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/sandbox"
)

// dirLock is the lock on a data directory.
type dirLock struct{ file *os.File }

// Close gives the lock back. It unlocks first: a program that is just being started has a copy of the descriptor for a
// moment, which would keep the lock.
func (l dirLock) Close() error {
	return errors.Join(unix.Flock(int(l.file.Fd()), unix.LOCK_UN), l.file.Close())
}

// takeLock lets one setup at a time work on a data directory. The lock ends with the process; the text in the file is
// for the message to the next one only.
func takeLock(root *os.Root, dataDir string) (dirLock, error) {
	f, err := root.OpenFile(lockFile, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return dirLock{}, fmt.Errorf("lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder, _ := io.ReadAll(io.LimitReader(f, 200)) // without it the message only says less
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "another setup of " + dataDir + " is running",
				Cause: strings.TrimSpace(string(holder)), Remedy: "wait until it has ended"}
		}
		return dirLock{}, errors.Join(err, f.Close())
	}
	text := fmt.Sprintf("process %d since %s\n", os.Getpid(), time.Now().UTC().Format(time.RFC3339))
	if err := f.Truncate(0); err != nil {
		return dirLock{}, errors.Join(fmt.Errorf("lock: %w", err), f.Close())
	}
	if _, err := f.WriteAt([]byte(text), 0); err != nil {
		return dirLock{}, errors.Join(fmt.Errorf("lock: %w", err), f.Close())
	}
	return dirLock{f}, nil
}
