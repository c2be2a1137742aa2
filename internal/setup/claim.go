package setup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

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
