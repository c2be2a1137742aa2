//go:build failpoints

package failpoint

import (
	"bytes"
	"os"

	"golang.org/x/sys/unix"
)

// Variable names the environment variable that has the path of the file. A line of the file is the name of a point; the
// first one is armed. The file is in a directory in which every part may write.
const Variable = "SPACE_FAILPOINTS"

// Hit ends this process when name is armed. The line is taken out of the file before, and with the last line the file:
// a point is hit once, by one process, and whoever watches the file knows when.
//
//nolint:gosec // the path is from whoever started this process
func Hit(name Name) {
	path := os.Getenv(Variable)
	if path == "" {
		return
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return // nothing is armed
	}
	armed, rest, _ := bytes.Cut(content, []byte("\n"))
	if string(armed) != string(name) {
		return
	}
	// Of several that come here at once, the one that gets the file is the one that is hit.
	taken := path + ".taken"
	if err := os.Rename(path, taken); err != nil {
		return
	}
	if len(rest) == 0 {
		err = os.Remove(taken)
	} else if err = os.WriteFile(taken, rest, 0o666); err == nil {
		err = os.Rename(taken, path)
	}
	if err != nil {
		panic("failpoint: " + err.Error()) // or the test would wait for a process that goes on
	}
	_ = unix.Kill(unix.Getpid(), unix.SIGKILL)
	select {} // until it has come
}
