package agent

import (
	"context"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	apiv1 "github.com/space-sandbox/space/api/v1"
)

const (
	defaultListLimit = 100
	maxListLimit     = 1000
	maxListDepth     = 64
	maxListBytes     = 512 << 10 // a page ends when its entries take about so much
	entryBytes       = 256       // of an entry's JSON without path and attributes, about
	readNames        = 1024      // read of a directory at once
)

// listFiles answers GET /files/list.
func (s *Server) listFiles(w http.ResponseWriter, r *http.Request, req fileRequest) error {
	l := &lister{ctx: r.Context(), limit: req.limit, base: strings.TrimRight(req.path, "/"), owners: s.table.users.names(),
		page: apiv1.FileList{Items: []apiv1.FileInfo{}}}
	err := asUser(req.account, func() error {
		dir, err := openDirectory(req.path)
		if err != nil {
			return err
		}
		defer unix.Close(dir)
		more, err := l.walk(dir, "", req.after, req.depth)
		if more {
			l.page.NextCursor = base64.RawURLEncoding.EncodeToString([]byte(l.last))
		}
		return err
	})
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, l.page)
	return nil
}

// parseCursor is the names of the entry that ended the page before. A cursor stands for a place in the order, not for
// the entry, which may be gone.
func parseCursor(text string) ([]string, error) {
	if text == "" {
		return nil, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(raw) > maxPath || strings.IndexByte(string(raw), 0) >= 0 {
		return nil, badField("cursor", "is not of this route")
	}
	parts := strings.Split(string(raw), "/")
	if len(parts) > maxListDepth || slices.ContainsFunc(parts, func(n string) bool { return n == "" || n == "." || n == ".." }) {
		return nil, badField("cursor", "is not of this route")
	}
	return parts, nil
}

// openDirectory opens a directory for reading its names, following links to it.
func openDirectory(p string) (int, error) {
	fd, err := openAt(unix.AT_FDCWD, p, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK)
	if !errors.Is(err, unix.ENOTDIR) {
		return fd, err
	}
	// Is it the path itself that is no directory, or a part on the way?
	if end, serr := openAt(unix.AT_FDCWD, strings.TrimRight(p, "/"), unix.O_PATH); serr == nil {
		_ = unix.Close(end)
		return -1, errNotDirectory
	}
	return -1, err
}

// lister collects one page. It runs as the user.
type lister struct {
	ctx    context.Context
	limit  int
	base   string
	owners names
	page   apiv1.FileList
	bytes  int
	last   string // of the page, relative to base
}

func (l *lister) full() bool { return len(l.page.Items) >= l.limit || l.bytes >= maxListBytes }

// walk adds what is in dir, whose path relative to base is rel, behind after. more is true when the page is full and
// something may follow.
func (l *lister) walk(dir int, rel string, after []string, depth int) (more bool, err error) {
	from, inclusive := "", false
	if len(after) > 0 {
		from, inclusive = after[0], true
	}
	for {
		want := l.limit - len(l.page.Items) + 2 // the one of the cursor, and one to know that there is more
		batch, err := nextNames(l.ctx, dir, from, inclusive, want)
		if err != nil {
			return false, err
		}
		for _, name := range batch {
			var rest []string
			if len(after) > 0 && name == after[0] {
				rest = after[1:]
			} else if l.full() {
				return true, nil
			} else if err := l.add(dir, name, rel+name); err != nil {
				return false, err
			}
			if depth > 1 {
				if more, err := l.descend(dir, name, rel, rest, depth-1); more || err != nil {
					return more, err
				}
			}
		}
		if len(batch) < want {
			return false, nil
		}
		from, inclusive = batch[len(batch)-1], false
	}
}

// descend lists a directory below; one that may not be read, or is none, has nothing in it.
func (l *lister) descend(dir int, name, rel string, after []string, depth int) (bool, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
			return false, err
		}
		return false, nil
	}
	defer unix.Close(fd)
	return l.walk(fd, rel+name+"/", after, depth)
}

// add describes one entry; one that has gone meanwhile is left out.
func (l *lister) add(dir int, name, rel string) error {
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EACCES) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	info, err := describe(fd, l.base+"/"+rel, l.owners)
	if err != nil {
		return err
	}
	l.page.Items = append(l.page.Items, info)
	l.last = rel
	l.bytes += entryBytes + 2*len(info.Path)
	for name, value := range info.XAttrs {
		l.bytes += len(name) + 2*len(value)
	}
	for name, value := range info.XAttrsB64 {
		l.bytes += len(name) + len(value)
	}
	return nil
}

// nextNames returns the first n names of a directory that come behind from in the order of their bytes; with inclusive
// from itself counts too. However large the directory is, no more than n names are kept.
func nextNames(ctx context.Context, dir int, from string, inclusive bool, n int) ([]string, error) {
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "directory")
	defer f.Close()
	var kept []string // sorted
	for {
		some, err := f.Readdirnames(readNames)
		for _, name := range some {
			if name < from || name == from && !inclusive {
				continue
			}
			if len(kept) == n && name >= kept[n-1] {
				continue
			}
			at, found := slices.BinarySearch(kept, name)
			if found {
				continue
			}
			if len(kept) == n {
				kept = kept[:n-1]
			}
			kept = slices.Insert(kept, at, name)
		}
		if errors.Is(err, io.EOF) {
			return kept, nil
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return nil, err
		}
	}
}
