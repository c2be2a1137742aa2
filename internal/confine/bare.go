package confine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// coverRoot mounts something empty on the directories of / that the process does not need. The calling thread has a
// mount namespace of its own.
func coverRoot(spec *Spec) error {
	keep, err := neededDirs(spec)
	if err != nil {
		return err
	}
	entries, err := os.ReadDir("/")
	if err != nil {
		return fmt.Errorf("confine: bare root: %w", err)
	}
	for _, e := range entries {
		if !e.IsDir() || keep[e.Name()] { // a link leads to another of them
			continue
		}
		flags := uintptr(unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
		if err := unix.Mount("space-bare", "/"+e.Name(), "tmpfs", flags, "mode=555,size=4k,nr_inodes=1"); err != nil {
			return fmt.Errorf("confine: bare root: cover /%s: %w", e.Name(), err)
		}
	}
	return nil
}

// neededDirs names the directories of / that what the process needs really lies in.
func neededDirs(spec *Spec) (map[string]bool, error) {
	keep := map[string]bool{"dev": true, "proc": true}
	paths := []string{spec.Path, spec.Dir}
	if l := spec.Landlock; l != nil {
		paths = append(append(paths, l.ReadOnly...), l.ReadWrite...)
	}
	for _, p := range paths {
		if p == "" {
			continue
		}
		real, err := filepath.EvalSymlinks(p)
		if errors.Is(err, os.ErrNotExist) { // passed over, as by Landlock
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("confine: bare root: %w", err)
		}
		for _, at := range []string{p, real} {
			first, _, _ := strings.Cut(strings.TrimPrefix(filepath.Clean(at), "/"), "/")
			keep[first] = true
		}
	}
	return keep, nil
}
