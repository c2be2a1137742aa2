package agent

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of an archive, in both directions.
const (
	maxArchiveEntries = 500_000
	maxArchiveDepth   = 200     // each level holds a descriptor
	maxHardLinks      = 100_000 // remembered; more become files of their own
	attributeRecord   = "SCHILY.xattr."
)

// getArchive answers GET /files/archive: a tar of what is in a directory, with names relative to it, or of one file.
// Everything is looked at once before the first byte is sent, so that what may not be read is an error and not an
// archive that breaks off.
func (s *Server) getArchive(w http.ResponseWriter, r *http.Request, req fileRequest) error {
	owners := s.table.users.names()
	begun := false
	err := asUser(req.account, func() error {
		look := &packer{ctx: r.Context()}
		if err := look.pack(req.path); err != nil {
			return err
		}
		begun = true
		w.Header().Set("Content-Type", "application/x-tar")
		out := bufio.NewWriterSize(w, copyBuffer)
		p := &packer{ctx: r.Context(), tar: tar.NewWriter(out), owners: owners, buf: make([]byte, copyBuffer), links: map[inode]string{}}
		if err := p.pack(req.path); err != nil {
			return err
		}
		return errors.Join(p.tar.Close(), out.Flush())
	})
	if err != nil && begun {
		s.cfg.Logger.WarnContext(r.Context(), "an archive broke off", "path", req.path, "error", err)
		panic(http.ErrAbortHandler) // the only way to say that an answer is not whole
	}
	return err
}

type inode struct{ dev, ino uint64 }

// packer writes a tar, or without one looks whether that could be done. It runs as the user.
type packer struct {
	ctx     context.Context
	tar     *tar.Writer
	owners  names
	buf     []byte
	links   map[inode]string // the first name of files with several
	entries int
}

func (p *packer) pack(path string) error {
	fd, err := openAt(unix.AT_FDCWD, path, unix.O_PATH)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		if err := regular(&st); err != nil {
			return err
		}
		clean := strings.TrimRight(path, "/")
		return p.file(func() (*os.File, error) { return reopen(fd, unix.O_RDONLY) }, clean[strings.LastIndexByte(clean, '/')+1:])
	}
	dir, err := openAt(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	return p.directory(dir, "./", 0)
}

// directory adds a directory and what is in it, and closes dir. name ends with a slash.
func (p *packer) directory(dir int, name string, depth int) error {
	f := os.NewFile(uintptr(dir), "directory")
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return err
	}
	if err := p.header(&tar.Header{Typeflag: tar.TypeDir, Name: name}, &st, dir); err != nil {
		return err
	}
	if depth == maxArchiveDepth {
		return fmt.Errorf("%.100q: %w", name, errTooMany)
	}
	for {
		some, err := f.Readdirnames(readNames)
		for _, n := range some {
			if err := p.entry(dir, n, strings.TrimPrefix(name, "./")+n, depth); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = p.ctx.Err()
		}
		if err != nil {
			return err
		}
	}
}

// entry adds one entry of a directory. What vanishes meanwhile, and devices, pipes and sockets, are left out.
func (p *packer) entry(dir int, name, full string, depth int) error {
	var st unix.Stat_t
	err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return within(full, err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		sub, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return within(full, err)
		}
		return p.directory(sub, full+"/", depth+1)
	case unix.S_IFLNK:
		to, err := readLink(dir, name)
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return within(full, err)
		}
		return p.header(&tar.Header{Typeflag: tar.TypeSymlink, Name: full, Linkname: to}, &st, -1)
	case unix.S_IFREG:
		return p.file(func() (*os.File, error) {
			fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
			if err != nil {
				return nil, err
			}
			return os.NewFile(uintptr(fd), name), nil
		}, full)
	}
	return nil
}

// within says which entry it was.
func within(name string, err error) error { return fmt.Errorf("%.200q: %w", name, err) }

// file adds a regular file with exactly the bytes it had when its header was written; one that shrinks is an error.
func (p *packer) file(open func() (*os.File, error), name string) error {
	f, err := open()
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return within(name, err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return within(name, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil // replaced meanwhile
	}
	id := inode{st.Dev, st.Ino}
	if first, ok := p.links[id]; ok {
		return p.header(&tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: first}, &st, -1)
	}
	if err := p.header(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: st.Size}, &st, int(f.Fd())); err != nil {
		return err
	}
	if p.tar == nil {
		return nil
	}
	if st.Nlink > 1 && len(p.links) < maxHardLinks {
		p.links[id] = name
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{p.tar}, struct{ io.Reader }{io.LimitReader(f, st.Size)}, p.buf)
	if err == nil && n < st.Size {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// header writes what is common to all entries; fd is where attributes are read, -1 for none.
func (p *packer) header(h *tar.Header, st *unix.Stat_t, fd int) error {
	if p.entries++; p.entries > maxArchiveEntries {
		return errTooMany
	}
	if err := p.ctx.Err(); err != nil {
		return err
	}
	if p.tar == nil {
		return nil
	}
	h.Mode, h.Uid, h.Gid, h.Uname = int64(st.Mode&0o7777), int(st.Uid), int(st.Gid), p.owners.of(st.Uid)
	h.ModTime = moment(st.Mtim).Truncate(time.Second)
	if fd >= 0 {
		for name, value := range attributes(fd, maxShownAttributes) {
			if strings.HasPrefix(name, userAttribute) && !strings.Contains(name, "=") {
				if h.PAXRecords == nil {
					h.PAXRecords = map[string]string{}
				}
				h.PAXRecords[attributeRecord+name] = value
			}
		}
	}
	return p.tar.WriteHeader(h)
}
