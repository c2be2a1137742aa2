package agent

import (
	"errors"
	"io/fs"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// defaultPath is the PATH of a process whose specification has none.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// findProgram returns what to execute for argv0, as the calling thread's user sees it: a name without a slash is
// looked for in the directories of searchPath, anything else is taken from cwd. A program that exists but may not
// be executed is fs.ErrPermission, unless a later directory has one that may.
func findProgram(argv0, cwd, searchPath string) (string, error) {
	if strings.Contains(argv0, "/") {
		p := argv0
		if !path.IsAbs(p) {
			p = cwd + "/" + p
		}
		return p, executable(p)
	}
	var refused bool
	for dir := range strings.SplitSeq(searchPath, ":") {
		if dir == "" {
			dir = "."
		}
		p := dir + "/" + argv0
		if !path.IsAbs(dir) {
			p = cwd + "/" + p
		}
		err := executable(p)
		if err == nil {
			return p, nil
		}
		refused = refused || errors.Is(err, fs.ErrPermission)
	}
	if refused {
		return "", fs.ErrPermission
	}
	return "", fs.ErrNotExist
}

// executable is nil for a regular file that the calling thread may execute.
func executable(p string) error {
	return usable(p, unix.S_IFREG, fs.ErrPermission)
}

// enterable is nil for a directory that the calling thread may make its working directory.
func enterable(p string) error {
	return usable(p, unix.S_IFDIR, unix.ENOTDIR)
}

// usable asks for the type of p, other being the error of any other, and for the x permission.
func usable(p string, kind uint32, other error) error {
	var st unix.Stat_t
	if err := unix.Stat(p, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != kind {
		return other
	}
	return unix.Faccessat2(unix.AT_FDCWD, p, unix.X_OK, unix.AT_EACCESS)
}
