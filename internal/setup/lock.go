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

// takeLock lets one setup at a time work on a data directory. The lock ends with the process; the text in the file is
// for the message to the next one only.
func takeLock(root *os.Root, dataDir string) (*os.File, error) {
	f, err := root.OpenFile(lockFile, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder, _ := io.ReadAll(io.LimitReader(f, 200)) // without it the message only says less
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "another setup of " + dataDir + " is running",
				Cause: strings.TrimSpace(string(holder)), Remedy: "wait until it has ended"}
		}
		return nil, errors.Join(err, f.Close())
	}
	text := fmt.Sprintf("process %d since %s\n", os.Getpid(), time.Now().UTC().Format(time.RFC3339))
	if err := f.Truncate(0); err != nil {
		return nil, errors.Join(fmt.Errorf("lock: %w", err), f.Close())
	}
	if _, err := f.WriteAt([]byte(text), 0); err != nil {
		return nil, errors.Join(fmt.Errorf("lock: %w", err), f.Close())
	}
	return f, nil
}
