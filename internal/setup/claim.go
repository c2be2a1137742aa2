package setup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/datadir"
	"github.com/space-sandbox/space/internal/sandbox"
)

// Claimed returns what the host's own list knows of the installation at path, which outlives the data directory: id and
// uid range. It is false when no setup has got that far there.
func (h Host) Claimed(path string) (datadir.Installation, bool, error) {
	claims, err := h.readClaims()
	if err != nil {
		return datadir.Installation{}, false, err
	}
	i := slices.IndexFunc(claims, func(c idRange) bool { return c.DataDir == path })
	if i < 0 {
		return datadir.Installation{}, false, nil
	}
	return datadir.Installation{ID: claims[i].ID, UIDBase: claims[i].Base, UIDCount: claims[i].Count}, true, nil
}

// CheckClaim fails when the host's list does not name this installation at this place: the directory was moved or
// copied, and its uids may be another's by now.
func (h Host) CheckClaim(dir *datadir.Dir) error {
	in, found, err := h.Claimed(dir.Path)
	if err != nil {
		return err
	}
	if found && in.ID == dir.Installation.ID && in.UIDBase == dir.Installation.UIDBase && in.UIDCount == dir.Installation.UIDCount {
		return nil
	}
	return &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "this host does not know the installation at this place",
		Cause:  fmt.Sprintf("installation %s in %s is not in %s: was the directory moved or copied?", dir.Installation.ID, dir.Path, h.ConfigDir),
		Remedy: "run: space setup --data-dir " + dir.Path}
}

// Leftovers lists the data directories of this host that are no installation (any more), but of which something is left
// in the kernel: a setup was given up, or a directory was removed while it was in use. Claims without anything in the
// kernel are freed by the next setup.
func (h Host) Leftovers() ([]string, error) {
	claims, err := h.readClaims()
	if err != nil {
		return nil, err
	}
	var left []string
	for _, c := range claims {
		dir := datadir.Dir{Path: c.DataDir, Installation: datadir.Installation{ID: c.ID}}
		if _, err := os.Lstat(dir.InstallationFile()); errors.Is(err, fs.ErrNotExist) && inKernel(dir) {
			left = append(left, c.DataDir)
		}
	}
	return left, nil
}

// inKernel reports whether anything of an installation is outside of its data directory, or mounted in it.
func inKernel(dir datadir.Dir) bool {
	if _, err := os.Lstat(dir.RunDir()); err == nil {
		return true
	}
	boxes, err := filepath.Glob("/run/netns/space-" + dir.Installation.ID + "-*")
	if err != nil || len(boxes) > 0 {
		return true
	}
	var at, above unix.Stat_t
	return unix.Stat(dir.PoolDir(), &at) == nil && unix.Stat(dir.Path, &above) == nil && at.Dev != above.Dev
}

func (h Host) readClaims() ([]idRange, error) {
	conf, err := os.OpenRoot(h.ConfigDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("host configuration: %w", err)
	}
	defer conf.Close()
	return loadRanges(conf)
}

// restoreRecord makes a record anew that cannot be read: the host's list has what must not change, the steps of setup
// find the rest.
func (r *run) restoreRecord(damage error) error {
	in, found, err := r.host.Claimed(r.dir.Path)
	if err != nil || !found {
		return errors.Join(damage, err)
	}
	r.record = &record{in}
	r.result.Warnings = append(r.result.Warnings, fmt.Sprintf("%v; made again from %s", damage, r.host.ConfigDir))
	return nil
}

// Busy fails while a setup works on the data directory at path. The returned function lets the next one in.
func Busy(path string) (release func(), err error) {
	root, err := os.OpenRoot(path)
	if errors.Is(err, fs.ErrNotExist) {
		return func() {}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	defer root.Close()
	lock, err := takeLock(root, path)
	if err != nil {
		return nil, err
	}
	return func() { lock.Close() }, nil
}
