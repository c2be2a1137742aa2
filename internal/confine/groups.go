package confine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Groups makes and finds the control groups of one installation, in every hierarchy of the host: v1, v2 or both.
// Safe for concurrent use.
type Groups struct {
	parent      string // space-<installation>
	hierarchies []hierarchy
}

var groupName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)

// OpenGroups finds out what the host has. It changes nothing; the first Create does.
func OpenGroups(installation string) (*Groups, error) {
	if !groupName.MatchString(installation) {
		return nil, fmt.Errorf("confine: %q is not an installation id", installation)
	}
	h, err := hierarchies()
	if err != nil {
		return nil, err
	}
	return &Groups{parent: "space-" + installation, hierarchies: h}, nil
}

// Missing names the controllers ("memory", "cpu", "pids") that the host does not offer: these limits do not hold.
func (g *Groups) Missing() []string {
	var missing []string
	for _, c := range wantedControllers() {
		if !slices.ContainsFunc(g.hierarchies, func(h hierarchy) bool { return slices.Contains(h.controllers, c) }) {
			missing = append(missing, c)
		}
	}
	return missing
}

// Create makes a group. An existing one of that name is an error (fs.ErrExist). On error nothing is left.
func (g *Groups) Create(name string, limits Limits) (*Group, error) {
	group, err := g.group(name)
	if err != nil {
		return nil, err
	}
	for _, h := range g.hierarchies {
		if err := h.prepare(g.parent); err != nil {
			return nil, err
		}
	}
	if err := group.create(limits); err != nil {
		return nil, err
	}
	return group, nil
}

// Open finds an existing group (fs.ErrNotExist when no part of it is left).
func (g *Groups) Open(name string) (*Group, error) {
	group, err := g.group(name)
	if err != nil {
		return nil, err
	}
	for _, d := range group.dirs {
		if _, err := os.Stat(d.path); err == nil {
			return group, nil
		}
	}
	return nil, fmt.Errorf("control group %s: %w", group.path, fs.ErrNotExist)
}

// List names the groups that exist, also those of which an interrupted Create or Remove left only a part.
func (g *Groups) List() ([]string, error) {
	var names []string
	for _, h := range g.hierarchies {
		entries, err := os.ReadDir(filepath.Join(h.base, g.parent))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("listing control groups: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() && !slices.Contains(names, e.Name()) {
				names = append(names, e.Name())
			}
		}
	}
	slices.Sort(names)
	return names, nil
}

// Prune removes what the installation itself has in the hierarchies. It fails while a group exists, and is meant for
// the end of an installation (or of a test).
func (g *Groups) Prune(ctx context.Context) error {
	for _, h := range g.hierarchies {
		dir := filepath.Join(h.base, g.parent)
		err := retry(ctx, func() (bool, error) {
			err := unix.Rmdir(dir)
			if errors.Is(err, unix.ENOENT) {
				return true, nil
			}
			return !errors.Is(err, unix.EBUSY), ignoreBusy(err)
		})
		if err != nil {
			return fmt.Errorf("removing control group %s: %w", dir, err)
		}
	}
	return nil
}

func ignoreBusy(err error) error {
	if errors.Is(err, unix.EBUSY) {
		return nil
	}
	return err
}

func (g *Groups) group(name string) (*Group, error) {
	if !groupName.MatchString(name) {
		return nil, fmt.Errorf("confine: %q is not a group name", name)
	}
	return newGroup(g.hierarchies, g.parent+"/"+name), nil
}

func newGroup(hs []hierarchy, path string) *Group {
	group := &Group{path: path}
	for _, h := range hs {
		group.dirs = append(group.dirs, groupDir{hierarchy: h, path: filepath.Join(h.base, path)})
	}
	return group
}

// groupAt is the group behind Identity.Cgroup.
func groupAt(path string) (*Group, error) {
	parent, name, ok := strings.Cut(path, "/")
	if !ok || !groupName.MatchString(parent) || !groupName.MatchString(name) || !strings.HasPrefix(parent, "space-") {
		return nil, fmt.Errorf("confine: %q is not a group path", path)
	}
	hs, err := hierarchies()
	if err != nil {
		return nil, err
	}
	return newGroup(hs, path), nil
}
