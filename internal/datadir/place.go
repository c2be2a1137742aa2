package datadir

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/sandbox"
)

// MaxPath is the longest path of a data directory: it keeps every path of an installation far below the kernel's limit.
const MaxPath = 1024

// PathError says why a data directory cannot be used.
func PathError(path, cause, remedy string) error {
	return &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "the data directory cannot be used",
		Cause: fmt.Sprintf("%.200q: %s", path, cause), Remedy: remedy}
}

// CheckPath refuses data directories that other users could replace, or that the users space and space-gw could not
// reach.
func CheckPath(path string) error {
	switch {
	case !filepath.IsAbs(path):
		return PathError(path, "the path is not absolute", "give an absolute path, for example /var/lib/space")
	case len(path) > MaxPath:
		return PathError(path, fmt.Sprintf("the path has %d bytes, at most %d are possible", len(path), MaxPath), "choose a shorter path")
	case path != filepath.Clean(path) || path == "/":
		return PathError(path, "the path is not in its shortest form, or is the root directory", "give a plain path such as /var/lib/space")
	case !utf8.ValidString(path) || strings.ContainsFunc(path, unicode.IsControl):
		return PathError(path, "the path has characters that are not printable", "choose a plain path such as /var/lib/space")
	}
	for _, at := range ancestors(path) {
		if err := checkComponent(path, at); err != nil {
			return err
		}
	}
	return nil
}

// ancestors returns every directory on the way to path and path itself, the root first.
func ancestors(path string) []string {
	all := []string{path}
	for path != "/" {
		path = filepath.Dir(path)
		all = append(all, path)
	}
	slices.Reverse(all)
	return all
}

// checkComponent checks one directory on the way; what does not exist yet will be made by us.
func checkComponent(path, at string) error {
	var link, st unix.Stat_t
	err := unix.Lstat(at, &link)
	if err == nil {
		err = unix.Stat(at, &st)
	}
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.ENOTDIR):
		return PathError(path, filepath.Dir(at)+" is not a directory", "choose another path")
	case errors.Is(err, unix.ENAMETOOLONG):
		return PathError(path, "a name in the path is longer than the file system allows", "choose a shorter path")
	case err != nil:
		return PathError(path, at+": "+err.Error(), "choose another path")
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return PathError(path, at+" is not a directory", "choose another path, or move that file away")
	}
	if link.Uid != 0 || st.Uid != 0 {
		return PathError(path, at+" does not belong to root", "choose a directory that only root can change, or: chown root "+at)
	}
	// In a sticky directory (/tmp) nobody else can replace what belongs to root.
	if st.Mode&0o022 != 0 && (st.Mode&unix.S_ISVTX == 0 || at == path) {
		return PathError(path, at+" can be written by others than root", "choose another path, or: chmod go-w "+at)
	}
	if st.Mode&0o001 == 0 && at != path {
		return PathError(path, "the users space and space-gw cannot pass "+at, "choose a path outside of it, or: chmod o+x "+at)
	}
	return nil
}
