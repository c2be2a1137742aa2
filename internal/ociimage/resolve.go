package ociimage

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
)

const (
	// maxPath and maxName are the kernel's own limits.
	maxPath = 4095
	maxName = 255
	// maxHops is how many symbolic links one path may lead through.
	maxHops = 40
)

// entryName checks the name of an entry and returns its parts, relative to the root; none for the root itself.
func entryName(name string) ([]string, error) {
	if strings.ContainsRune(name, 0) || len(name) > maxPath {
		return nil, refuse("an entry has a name that is none: %.100q", name)
	}
	var parts []string
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "" || part == ".":
			continue
		case part == "..":
			return nil, refuse("an entry leads out of the image: %.200q", name)
		case len(part) > maxName:
			return nil, refuse("an entry has a name that is too long: %.100q", name)
		}
		parts = append(parts, part)
	}
	return parts, nil
}

// resolve follows directories, as if root were /, and returns a path without links. Directories that are missing are
// made. Something else in the place of a directory is refused.
func resolve(root *os.Root, parts []string) (string, error) { return walk(root, parts, true) }

// lookup is resolve that makes nothing: fs.ErrNotExist when a directory is missing.
func lookup(root *os.Root, parts []string) (string, error) { return walk(root, parts, false) }

func walk(root *os.Root, parts []string, missing bool) (string, error) {
	at, hops := ".", 0
	for len(parts) > 0 {
		part := parts[0]
		parts = parts[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			at = path.Dir(at) // "." stays "."
			continue
		}
		next := path.Join(at, part)
		if len(next) > maxPath || len(part) > maxName {
			return "", refuse("a path is too long: %.100q", next)
		}
		info, err := root.Lstat(next)
		switch {
		case errors.Is(err, fs.ErrNotExist) && missing:
			if err := root.Mkdir(next, 0o755); err != nil {
				return "", err
			}
			at = next
		case err != nil:
			return "", err
		case info.IsDir():
			at = next
		case info.Mode()&fs.ModeSymlink == 0:
			return "", refuse("%.200q is not a directory, but something lies in it", next)
		default:
			if hops++; hops > maxHops {
				return "", refuse("%.200q leads through too many links", next)
			}
			target, err := root.Readlink(next)
			if err != nil {
				return "", err
			}
			if path.IsAbs(target) {
				at = "."
			}
			parts = append(strings.Split(target, "/"), parts...)
		}
	}
	return at, nil
}

// place resolves all but the last part.
func place(root *os.Root, parts []string) (string, error) {
	dir, err := resolve(root, parts[:len(parts)-1])
	if err != nil {
		return "", err
	}
	full := path.Join(dir, parts[len(parts)-1])
	if len(full) > maxPath {
		return "", refuse("a path is too long: %.100q", full)
	}
	return full, nil
}
