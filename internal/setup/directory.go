package setup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/sandbox"
)

// maxPath keeps every path of an installation far below the kernel's limit.
const maxPath = 1024

func pathError(path, cause, remedy string) error {
	return &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "the data directory cannot be used",
		Cause: fmt.Sprintf("%.200q: %s", path, cause), Remedy: remedy}
}

// checkPath refuses data directories that other users could replace, or that the users space and space-gw could not
// reach.
func checkPath(path string) error {
	switch {
	case !filepath.IsAbs(path):
		return pathError(path, "the path is not absolute", "give an absolute path, for example /var/lib/space")
	case len(path) > maxPath:
		return pathError(path, fmt.Sprintf("the path has %d bytes, at most %d are possible", len(path), maxPath), "choose a shorter path")
	case path != filepath.Clean(path) || path == "/":
		return pathError(path, "the path is not in its shortest form, or is the root directory", "give a plain path such as /var/lib/space")
	case !utf8.ValidString(path) || strings.ContainsFunc(path, unicode.IsControl):
		return pathError(path, "the path has characters that are not printable", "choose a plain path such as /var/lib/space")
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
		return pathError(path, filepath.Dir(at)+" is not a directory", "choose another path")
	case errors.Is(err, unix.ENAMETOOLONG):
		return pathError(path, "a name in the path is longer than the file system allows", "choose a shorter path")
	case err != nil:
		return pathError(path, at+": "+err.Error(), "choose another path")
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return pathError(path, at+" is not a directory", "choose another path, or move that file away")
	}
	if link.Uid != 0 || st.Uid != 0 {
		return pathError(path, at+" does not belong to root", "choose a directory that only root can change, or: chown root "+at)
	}
	// In a sticky directory (/tmp) nobody else can replace what belongs to root.
	if st.Mode&0o022 != 0 && (st.Mode&unix.S_ISVTX == 0 || at == path) {
		return pathError(path, at+" can be written by others than root", "choose another path, or: chmod go-w "+at)
	}
	if st.Mode&0o001 == 0 && at != path {
		return pathError(path, "the users space and space-gw cannot pass "+at, "choose a path outside of it, or: chmod o+x "+at)
	}
	return nil
}

// makeDataDir makes the directory and those above it. A directory that holds something else is refused.
func makeDataDir(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return pathError(path, err.Error(), "choose another path")
	}
	err := os.Mkdir(path, 0o711)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return pathError(path, err.Error(), "choose another path")
	}
	// Whoever was faster than us has to pass the same checks.
	if err := checkPath(path); err != nil {
		return err
	}
	list, err := os.ReadDir(path)
	if err != nil {
		return pathError(path, err.Error(), "choose another path")
	}
	for _, e := range list {
		if !slices.Contains(ownNames(), e.Name()) && !strings.HasPrefix(e.Name(), ".") && e.Name() != "lost+found" {
			return pathError(path, "it holds something that is not of SPACE: "+e.Name(), "choose an empty or a new directory")
		}
	}
	return nil
}

func ownNames() []string {
	return []string{installationFile, recordFile, lockFile, "admin.key", "up.lock", "control", "node", "pool", "pool.img", "pool.img.new", "work"}
}

// directories makes the directories with their owners; those of control are made when its user is known.
func (r *run) directories(context.Context) (string, error) {
	if err := ensureDir(r.root, ".", 0o711, owner{}); err != nil {
		return "", err
	}
	for _, name := range []string{"node", "node/machines", "node/guest", "pool", "work"} {
		if err := ensureDir(r.root, name, 0o700, owner{}); err != nil {
			return "", err
		}
	}
	return r.dir.Path, r.sweepWork()
}

// sweepWork removes what a setup that was cut off left. We hold the lock: nobody else works here.
func (r *run) sweepWork() error {
	list, err := fs.ReadDir(r.root.FS(), "work")
	if err != nil {
		return err
	}
	for _, e := range list {
		if err := r.root.RemoveAll("work/" + e.Name()); err != nil {
			return fmt.Errorf("remove what an earlier setup left: %w", err)
		}
	}
	return nil
}

// ensureDir makes a directory or corrects its owner and mode. A mounted pool keeps its own.
func ensureDir(root *os.Root, name string, mode fs.FileMode, o owner) error {
	if name != "." {
		if err := root.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make directory: %w", err)
		}
	}
	info, err := root.Lstat(name)
	if err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("make directory: %s is in the way and not a directory", name)
	}
	f, err := root.Open(name)
	if err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	if err := errors.Join(f.Chown(int(o.uid), int(o.gid)), f.Chmod(mode), f.Close()); err != nil {
		return fmt.Errorf("make directory %s: %w", name, err)
	}
	return nil
}
