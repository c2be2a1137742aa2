package agent

import (
	"archive/tar"
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

const (
	maxMadeNames = 16 << 20 // bytes of the names of directories whose modes are set at the end
	sparseRecord = "GNU.sparse."
	maxTail      = 1 << 20 // bytes taken behind an archive's end: writers fill their last block
)

// putArchive answers PUT /files/archive: it unpacks a tar in a directory. Owners are the user's whatever the archive
// says. When it fails, what was unpacked until then stays, and the error says how much that is.
func (s *Server) putArchive(w http.ResponseWriter, r *http.Request, req fileRequest) error {
	u := &unpacker{ctx: r.Context(), body: &tarBody{bodyReader: bodyReader{r: r.Body}}, buf: make([]byte, copyBuffer), made: map[string]ending{}}
	err := asUser(req.account, func() error {
		root, made, err := unpackRoot(req)
		if err != nil {
			return err
		}
		defer unix.Close(root)
		u.root, u.rootMade = root, made
		return u.run()
	})
	if err != nil {
		return u.said(req.path, err)
	}
	writeJSON(w, http.StatusOK, apiv1.UnpackedArchive{Path: req.path, Entries: u.entries, SizeBytes: u.size})
	return nil
}

// unpackRoot opens the directory and, if asked, makes it.
func unpackRoot(req fileRequest) (root int, made bool, err error) {
	fd, err := openDirectory(req.path)
	if err == nil || !req.createParents || !errors.Is(err, unix.ENOENT) {
		return fd, false, err
	}
	fd, err = openParent(req.path+"/", true)
	return fd, true, err
}

// tarBody is an archive on its way in. It notes whether it ended as archives end, with two empty blocks: one that was
// cut between two entries looks whole to the reader.
type tarBody struct {
	bodyReader
	zeros int // at the end of what was read
}

func (b *tarBody) Read(p []byte) (int, error) {
	n, err := b.bodyReader.Read(p)
	run := 0
	for run < n && p[n-1-run] == 0 && run < 1024 {
		run++
	}
	if run == n {
		run += b.zeros
	}
	b.zeros = min(run, 1024)
	return n, err
}

// unpacker unpacks one archive. It runs as the user. All names are resolved by the kernel below root: a link that
// leads out of it, made by the archive or by somebody else meanwhile, is not followed.
type unpacker struct {
	ctx      context.Context
	body     *tarBody
	buf      []byte
	root     int
	rootMade bool
	entries  int64
	size     int64
	at       string // the entry under way

	made      map[string]ending // directories that were made
	madeNames int
}

// ending is what a directory is given when everything is in it.
type ending struct {
	mode  uint32
	mtime time.Time // zero: stays as it is
}

// errUnsafe is an entry that is never unpacked.
func errUnsafe(cause string) error {
	return &sandbox.Error{Code: sandbox.CodeInvalidArgument, Message: "the archive has an entry that is not unpacked", Cause: cause,
		Remedy: "leave the entry out"}
}

func (u *unpacker) run() error {
	err := u.entriesOf(tar.NewReader(bufio.NewReaderSize(u.body, copyBuffer)))
	if err := errors.Join(err, u.finish()); err != nil {
		return err
	}
	awaitForks()                                 // programs that were unpacked may be run at once
	_, _ = io.CopyN(io.Discard, u.body, maxTail) // what follows the end is nobody's business
	return u.sync()
}

func (u *unpacker) entriesOf(tr *tar.Reader) error {
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) && u.body.err == nil {
			if u.body.zeros < 1024 {
				return &sandbox.Error{Code: sandbox.CodeInvalidArgument, Message: "the archive was cut off", Cause: "it has no end", Remedy: "send it again"}
			}
			return nil
		}
		if err != nil {
			return u.readError(err)
		}
		if err := u.ctx.Err(); err != nil {
			return err
		}
		if u.entries == maxArchiveEntries {
			return errTooMany
		}
		if err := u.entry(tr, h); err != nil {
			return err
		}
		u.at = ""
	}
}

// readError says what came of reading the archive.
func (u *unpacker) readError(err error) error {
	if u.body.err != nil {
		return &sandbox.Error{Code: sandbox.CodeInvalidArgument, Message: "the body was cut off", Remedy: "send it again", Err: u.body.err}
	}
	return &sandbox.Error{Code: sandbox.CodeInvalidArgument, Message: "the body is not a tar archive", Cause: err.Error(),
		Remedy: "send an uncompressed tar", Err: err}
}

// said adds to an error how far it went.
func (u *unpacker) said(p string, err error) error {
	at := p
	if u.at != "" {
		at = u.at
	}
	e := *sandbox.AsError(fileError(at, err))
	parts := []string{fmt.Sprintf("%d entries with %d bytes were unpacked before", u.entries, u.size)}
	if e.Cause != "" {
		parts = slices.Insert(parts, 0, e.Cause)
	}
	if u.at != "" && !strings.Contains(e.Cause, fmt.Sprintf("%.300q", u.at)) {
		parts = slices.Insert(parts, 0, fmt.Sprintf("entry %.200q", u.at))
	}
	e.Cause = cleanText(strings.Join(parts, "; "), maxErrorMessage)
	return &e
}

// insideName makes the name of an entry relative to the root: "" is the root itself.
func insideName(name string) (string, error) {
	if strings.HasPrefix(name, "/") {
		return "", errUnsafe("its name is absolute")
	}
	if strings.IndexByte(name, 0) >= 0 || len(name) > maxPath {
		return "", errUnsafe("its name has a NUL byte or is too long")
	}
	var parts []string
	for part := range strings.SplitSeq(name, "/") {
		switch part {
		case "", ".":
		case "..":
			return "", errUnsafe("its name leads out of the directory")
		default:
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, "/"), nil
}

func (u *unpacker) entry(tr *tar.Reader, h *tar.Header) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	u.at = h.Name
	name, err := insideName(h.Name)
	if err != nil {
		return err
	}
	if name == "" {
		if h.Typeflag != tar.TypeDir {
			return errUnsafe("it has no name")
		}
		u.entries++
		if u.rootMade {
			return u.end("", ending{uint32(h.Mode) & 0o1777, h.ModTime})
		}
		return nil
	}
	dir, last, err := u.parent(name)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	switch h.Typeflag {
	case tar.TypeDir:
		err = u.directory(dir, last, name, h)
	case tar.TypeReg:
		err = u.file(tr, dir, last, h)
	case tar.TypeSymlink:
		err = u.symlink(dir, last, h)
	case tar.TypeLink:
		err = u.link(dir, last, h)
	default:
		return errUnsafe("it is neither a file nor a directory nor a link")
	}
	if err == nil {
		u.entries++
	}
	return err
}

// maxTries bounds how often the kernel may find that something was renamed while it looked.
const maxTries = 100

// below opens a path below the root. The kernel follows links only as long as they stay there.
func (u *unpacker) below(p string, flags uint64) (int, error) {
	if p == "" {
		p = "."
	}
	how := &unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS}
	for range maxTries {
		fd, err := unix.Openat2(u.root, p, how)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			continue
		case errors.Is(err, unix.EXDEV), errors.Is(err, unix.ELOOP):
			return -1, errUnsafe("a link on its way leads out of the directory")
		}
		return fd, err
	}
	return -1, unix.EBUSY
}

// parent opens the directory an entry is in and makes what is missing of it.
func (u *unpacker) parent(name string) (dir int, last string, err error) {
	i := strings.LastIndexByte(name, '/')
	if i < 0 {
		dir, err = u.below("", openDir)
		return dir, name, err
	}
	dir, err = u.below(name[:i], openDir)
	if errors.Is(err, unix.ENOENT) {
		dir, err = u.makeAll(name[:i])
	}
	if errors.Is(err, unix.ENOTDIR) {
		err = errNotDirectory
	}
	return dir, name[i+1:], err
}

func (u *unpacker) makeAll(p string) (int, error) {
	dir, err := u.below("", openDir)
	if err != nil {
		return -1, err
	}
	for i := 0; i < len(p); {
		end := strings.IndexByte(p[i:], '/')
		if end < 0 {
			end = len(p) - i
		}
		next, err := u.below(p[:i+end], openDir)
		if errors.Is(err, unix.ENOENT) {
			if err = unix.Mkdirat(dir, p[i:i+end], 0o700); err == nil {
				err = u.end(p[:i+end], ending{mode: newDirMode})
			}
			if err == nil {
				next, err = u.below(p[:i+end], openDir)
			}
		}
		_ = unix.Close(dir)
		if err != nil {
			return -1, err
		}
		dir, i = next, i+end+1
	}
	return dir, nil
}

// end notes what a directory that was made gets at the end.
func (u *unpacker) end(name string, e ending) error {
	if _, known := u.made[name]; !known {
		if u.madeNames += len(name) + 64; u.madeNames > maxMadeNames {
			return errTooMany
		}
	}
	u.made[name] = e
	return nil
}

// directory makes a directory; one that was there before this archive stays as it is.
func (u *unpacker) directory(dir int, last, name string, h *tar.Header) error {
	err := unix.Mkdirat(dir, last, 0o700)
	if errors.Is(err, unix.EEXIST) {
		fd, err := u.below(name, openDir)
		if errors.Is(err, unix.ENOTDIR) {
			return unix.EEXIST
		}
		if err != nil {
			return err
		}
		_ = unix.Close(fd)
		if _, ours := u.made[name]; !ours {
			return nil
		}
	} else if err != nil {
		return err
	}
	return u.end(name, ending{uint32(h.Mode) & 0o1777, h.ModTime})
}

// file writes a file beside its name and renames it when it is whole.
func (u *unpacker) file(tr *tar.Reader, dir int, last string, h *tar.Header) (err error) {
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, sparseRecord) {
			return errUnsafe("it is sparse: a few bytes of archive could fill the disk")
		}
	}
	temp := tempPrefix + rand.Text()
	f, err := newFile(dir, temp)
	if err != nil {
		return err
	}
	defer f.Close()
	defer func() {
		if err != nil {
			_ = unix.Unlinkat(dir, temp, 0) // the error that brought us here is the one to tell
		}
	}()
	src := &bodyReader{r: tr}
	n, err := io.CopyBuffer(struct{ io.Writer }{f}, src, u.buf)
	if src.err != nil {
		return u.readError(src.err)
	}
	if err != nil {
		return err
	}
	fd := int(f.Fd())
	for key, value := range h.PAXRecords {
		if name, ok := strings.CutPrefix(key, attributeRecord); ok && strings.HasPrefix(name, userAttribute) {
			if err := unix.Fsetxattr(fd, name, []byte(value), 0); err != nil && !errors.Is(err, unix.ENOTSUP) {
				return err
			}
		}
	}
	if err := unix.Fchmod(fd, uint32(h.Mode)&0o1777); err != nil {
		return err
	}
	if err := setTime(fd, h.ModTime); err != nil {
		return err
	}
	if err := unix.Renameat(dir, temp, dir, last); err != nil {
		return err
	}
	u.size += n
	return nil
}

// setTime sets the time of last change of an open file.
func setTime(fd int, t time.Time) error {
	tv := unix.NsecToTimeval(t.Unix() * int64(time.Second))
	if t.IsZero() || t.Unix() < 0 || t.Unix() > 1<<33 {
		return nil
	}
	return unix.Futimes(fd, []unix.Timeval{tv, tv})
}

// symlink makes a link, whatever it leads to: nothing that is unpacked follows it out of the directory.
func (u *unpacker) symlink(dir int, last string, h *tar.Header) error {
	if h.Linkname == "" || len(h.Linkname) > maxPath || strings.IndexByte(h.Linkname, 0) >= 0 {
		return errUnsafe("what it links to is no path")
	}
	temp := tempPrefix + rand.Text()
	if err := unix.Symlinkat(h.Linkname, dir, temp); err != nil {
		return err
	}
	return place(dir, temp, last)
}

// link makes a hard link to a regular file inside.
func (u *unpacker) link(dir int, last string, h *tar.Header) error {
	name, err := insideName(h.Linkname)
	if err != nil || name == "" {
		return errUnsafe("what it links to is not in the directory")
	}
	from, i := u.root, strings.LastIndexByte(name, '/')
	if i >= 0 {
		if from, err = u.below(name[:i], openDir); err != nil {
			return err
		}
		defer unix.Close(from)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(from, name[i+1:], &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return errUnsafe("what it links to is not a file")
	}
	temp := tempPrefix + rand.Text()
	if err := unix.Linkat(from, name[i+1:], dir, temp, 0); err != nil {
		return err
	}
	return place(dir, temp, last)
}

// place renames a temporary name, and removes it when that fails or was nothing to do: two names of one file stay.
func place(dir int, temp, last string) error {
	err := unix.Renameat(dir, temp, dir, last)
	if uerr := unix.Unlinkat(dir, temp, 0); err == nil && uerr != nil && !errors.Is(uerr, unix.ENOENT) {
		err = uerr
	}
	return err
}

// finish gives the directories that were made their modes and times, those further down first.
func (u *unpacker) finish() error {
	names := slices.SortedFunc(maps.Keys(u.made), func(a, b string) int { return strings.Compare(b, a) })
	for _, name := range names {
		if err := u.finishOne(name, u.made[name]); err != nil && !errors.Is(err, unix.ENOENT) {
			u.at = name
			return err
		}
	}
	return nil
}

func (u *unpacker) finishOne(name string, e ending) error {
	fd, err := u.below(name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if err := unix.Fchmod(fd, e.mode); err != nil {
		return err
	}
	return setTime(fd, e.mtime)
}

// sync has all of it on the disk. The directory is opened anew: an O_PATH descriptor cannot be synced.
func (u *unpacker) sync() error {
	return syncTree(func() (int, error) { return u.below("", unix.O_RDONLY|unix.O_DIRECTORY) })
}

func syncTree(open func() (int, error)) error {
	do := func() error {
		fd, err := open()
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Syncfs(fd)
	}
	err := do()
	if errors.Is(err, unix.EACCES) {
		err = asAgent(do)
	}
	return err
}
