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

	"github.com/space-sandbox/space/internal/datadir"
)

// makeDataDir makes the directory and those above it. A directory that holds something else is refused.
func makeDataDir(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { // our users must pass it
		return datadir.PathError(path, err.Error(), "choose another path")
	}
	err := os.Mkdir(path, 0o711) // our users must pass it
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return datadir.PathError(path, err.Error(), "choose another path")
	}
	// Whoever was faster than us has to pass the same checks.
	if err := datadir.CheckPath(path); err != nil {
		return err
	}
	list, err := os.ReadDir(path)
	if err != nil {
		return datadir.PathError(path, err.Error(), "choose another path")
	}
	for _, e := range list {
		if !slices.Contains(ownNames(), e.Name()) && !strings.HasPrefix(e.Name(), ".") && e.Name() != "lost+found" {
			return datadir.PathError(path, "it holds something that is not of SPACE: "+e.Name(), "choose an empty or a new directory")
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
