package agent

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/sandbox"
)

// stored is the answer to PUT /files.
type stored struct {
	Path      string `json:"path"`
	SizeBytes int64  `json:"size_bytes"`
	SHA256    string `json:"sha256"`
}

// putFile answers PUT /files.
func (s *Server) putFile(w http.ResponseWriter, r *http.Request, req fileRequest) error {
	u := &upload{fileRequest: req, body: r.Body, length: r.ContentLength, commit: &s.commit}
	var result stored
	err := asUser(req.account, func() (err error) {
		result, err = u.store()
		return err
	})
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, result)
	return nil
}

// upload is one PUT /files. Its methods run as the user.
type upload struct {
	fileRequest
	body   io.Reader
	length int64 // of body; -1 when unknown
	commit *sync.Mutex
}

// target is where a file is to be: a name in an opened directory.
type target struct {
	dir   int // O_PATH
	name  string
	old   *unix.Stat_t // what is there now; nil for nothing
	oldFD int          // O_PATH, of old; -1 for nothing
}

func (t *target) close() {
	_ = unix.Close(t.dir)
	if t.oldFD >= 0 {
		_ = unix.Close(t.oldFD)
	}
}

const (
	maxLinks   = 40 // as the kernel
	tempPrefix = ".space-upload-"
	newDirMode = 0o755
	newMode    = 0o644
)

func (u *upload) store() (stored, error) {
	t, err := findTarget(u.path, u.createParents)
	if err != nil {
		return stored{}, err
	}
	defer t.close()
	if err := u.matches(t); err != nil {
		return stored{}, err
	}
	if u.inPlace {
		return u.overwriteIn(t)
	}
	return u.replaceIn(t)
}

// matches checks if_match against what is at the target.
func (u *upload) matches(t target) error {
	if u.ifMatch == "" {
		return nil
	}
	if t.old == nil {
		return errMismatch
	}
	f, err := reopen(t.oldFD, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.CopyBuffer(sum, struct{ io.Reader }{f}, make([]byte, copyBuffer)); err != nil {
		return err
	}
	if hex.EncodeToString(sum.Sum(nil)) != u.ifMatch {
		return errMismatch
	}
	return nil
}

// procPath is a path that leads to what a descriptor of this process stands for.
func procPath(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// reopen opens what an O_PATH descriptor stands for, with the calling thread's rights.
func reopen(fd, flags int) (*os.File, error) {
	n, err := unix.Open(procPath(fd), flags|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(n), "file"), nil
}

// replaceIn writes the body to a temporary file beside the target, and only when all of it is on the disk puts it in
// the target's place.
func (u *upload) replaceIn(t target) (stored, error) {
	temp := tempPrefix + rand.Text()
	f, err := newFile(t.dir, temp)
	if err != nil {
		return stored{}, err
	}
	defer closeForExec(f)
	placed := false
	defer func() {
		if !placed {
			_ = unix.Unlinkat(t.dir, temp, 0) // the error that brought us here is the one to tell
		}
	}()
	sum := sha256.New()
	size, err := receive(f, sum, u.body)
	if err != nil {
		return stored{}, err
	}
	if err := t.dress(f, u.mode); err != nil {
		return stored{}, err
	}
	if err := f.Sync(); err != nil {
		return stored{}, err
	}
	if err := u.rename(t, temp); err != nil {
		return stored{}, err
	}
	placed = true
	if err := syncDir(t.dir, f); err != nil {
		return stored{}, err
	}
	return stored{Path: u.path, SizeBytes: size, SHA256: hex.EncodeToString(sum.Sum(nil))}, nil
}

// rename puts the temporary file in the target's place. With if_match the target is checked again, and other uploads
// with if_match wait, so that only one of several wins.
func (u *upload) rename(t target, temp string) error {
	if u.ifMatch != "" {
		u.commit.Lock()
		defer u.commit.Unlock()
		now := target{dir: t.dir, name: t.name, oldFD: -1}
		if err := now.examine(); err != nil {
			return err
		}
		if now.oldFD >= 0 {
			defer unix.Close(now.oldFD)
		}
		if err := u.matches(now); err != nil {
			return err
		}
	}
	return unix.Renameat(t.dir, temp, t.dir, t.name)
}

func newFile(dir int, name string) (*os.File, error) {
	fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// overwriteIn writes the body into the file itself, which keeps its inode and with it links, owner and attributes. Room
// for a body of known length is reserved first, so that a full disk is noticed before the old content is gone. A file
// that was not there is removed when the body does not arrive whole.
func (u *upload) overwriteIn(t target) (_ stored, err error) {
	var f *os.File
	before := int64(0)
	if t.old == nil {
		f, err = newFile(t.dir, t.name)
	} else {
		f, err = reopen(t.oldFD, unix.O_WRONLY)
		before = t.old.Size
	}
	if err != nil {
		return stored{}, err
	}
	defer closeForExec(f)
	defer func() {
		switch {
		case err == nil:
		case t.old == nil:
			_ = unix.Unlinkat(t.dir, t.name, 0) // the error that brought us here is the one to tell
		default:
			_ = f.Truncate(max(before, written(f))) // gives back what was reserved
		}
	}()
	if u.length > 0 {
		err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, u.length)
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EFBIG) {
			return stored{}, err
		}
	}
	sum := sha256.New()
	size, err := receive(f, sum, u.body)
	if err != nil {
		return stored{}, err
	}
	if err := u.finishIn(t, f, size); err != nil {
		return stored{}, err
	}
	return stored{Path: u.path, SizeBytes: size, SHA256: hex.EncodeToString(sum.Sum(nil))}, nil
}

func (u *upload) finishIn(t target, f *os.File, size int64) error {
	if err := f.Truncate(size); err != nil {
		return err
	}
	mode := u.mode
	if mode < 0 && t.old == nil {
		mode = newMode
	}
	if mode >= 0 {
		if err := unix.Fchmod(int(f.Fd()), uint32(mode)); err != nil {
			return err
		}
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if t.old != nil {
		return nil
	}
	return syncDir(t.dir, f)
}

// written is how far f has been written: its offset.
func written(f *os.File) int64 {
	n, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return 0
	}
	return n
}

// closeForExec closes f and waits for children between fork and exec, which still have it open for writing: whoever is
// told that the file is there may run it at once.
func closeForExec(f *os.File) {
	f.Close()
	awaitForks()
}

func awaitForks() {
	syscall.ForkLock.RLock()
	syscall.ForkLock.RUnlock() //nolint:staticcheck // nothing to do inside: a fork holds the lock until its exec
}

// receive copies body into f and sum.
func receive(f *os.File, sum hash.Hash, body io.Reader) (int64, error) {
	src := &bodyReader{r: body}
	n, err := io.CopyBuffer(io.MultiWriter(f, sum), src, make([]byte, copyBuffer))
	if src.err != nil {
		return n, &sandbox.Error{Code: sandbox.CodeInvalidArgument, Message: "the body was cut off",
			Cause: fmt.Sprintf("after %d bytes", n), Remedy: "send it again", Err: src.err}
	}
	return n, err
}

// bodyReader remembers that it was the body that failed, not the disk.
type bodyReader struct {
	r   io.Reader
	err error
}

func (b *bodyReader) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		b.err = err
	}
	return n, err
}

// findTarget opens the directory of p, following a link that p itself may be, and checks what is there.
func findTarget(p string, createParents bool) (target, error) {
	for range maxLinks {
		i := strings.LastIndexByte(p, '/')
		dirPath, name := p[:i+1], p[i+1:]
		if name == "" || name == "." || name == ".." {
			return target{}, unix.EISDIR
		}
		dir, err := openParent(dirPath, createParents)
		if err != nil {
			return target{}, err
		}
		link, err := readLink(dir, name)
		if err == nil {
			_ = unix.Close(dir)
			if p = link; !strings.HasPrefix(link, "/") {
				p = dirPath + link
			}
			continue
		}
		t := target{dir: dir, name: name, oldFD: -1}
		if err := t.examine(); err != nil {
			_ = unix.Close(dir)
			return target{}, err
		}
		return t, nil
	}
	return target{}, unix.ELOOP
}

// examine finds out what is at the target. What may not be written in place may not be replaced either.
func (t *target) examine() error {
	fd, err := unix.Openat(t.dir, t.name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil {
		err = regular(&st)
	}
	if err == nil {
		err = unix.Faccessat2(fd, "", unix.W_OK, unix.AT_EACCESS|unix.AT_EMPTY_PATH)
	}
	if err != nil {
		_ = unix.Close(fd)
		return err
	}
	t.old, t.oldFD = &st, fd
	return nil
}

func readLink(dir int, name string) (string, error) {
	buf := make([]byte, maxPath+1)
	n, err := unix.Readlinkat(dir, name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

const openDir = unix.O_PATH | unix.O_DIRECTORY

// openParent opens the directory p and, if asked, makes what is missing of it.
func openParent(p string, create bool) (int, error) {
	dir, err := openAt(unix.AT_FDCWD, p, openDir)
	if !create || !errors.Is(err, unix.ENOENT) {
		return dir, err
	}
	if dir, err = openAt(unix.AT_FDCWD, "/", openDir); err != nil {
		return -1, err
	}
	for name := range strings.SplitSeq(p, "/") {
		if name == "" {
			continue
		}
		next, err := openOrMake(dir, name)
		_ = unix.Close(dir)
		if err != nil {
			return -1, err
		}
		dir = next
	}
	return dir, nil
}

func openOrMake(dir int, name string) (int, error) {
	fd, err := openAt(dir, name, openDir)
	if !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	// Another upload may make it at the same time.
	if err := unix.Mkdirat(dir, name, newDirMode); err != nil && !errors.Is(err, unix.EEXIST) {
		return -1, err
	}
	return openAt(dir, name, openDir)
}

// dress gives the new file its mode, and attributes, owner and group of the file it replaces. A file of another owner, which the
// user may write, stays that owner's as if it had been written in place: then the agent changes the owner, the old
// mode stays, and set-id bits go.
func (t *target) dress(f *os.File, mode int) error {
	fd := int(f.Fd())
	if t.old == nil {
		if mode < 0 {
			mode = newMode
		}
		return unix.Fchmod(fd, uint32(mode))
	}
	if err := copyAttributes(t.oldFD, fd); err != nil {
		return err
	}
	old := int(t.old.Mode & 0o7777)
	if mode < 0 {
		mode = old
	}
	var now unix.Stat_t
	if err := unix.Fstat(fd, &now); err != nil {
		return err
	}
	if now.Uid == t.old.Uid && now.Gid == t.old.Gid || unix.Fchown(fd, int(t.old.Uid), int(t.old.Gid)) == nil {
		return unix.Fchmod(fd, uint32(mode))
	}
	return asAgent(func() error {
		if err := unix.Fchown(fd, int(t.old.Uid), int(t.old.Gid)); err != nil {
			return err
		}
		return unix.Fchmod(fd, uint32(old&^(unix.S_ISUID|unix.S_ISGID)))
	})
}

// syncDir makes the new name durable. A directory that even the agent may not read is synced with the file system of f,
// which may be nil when it has none to offer.
func syncDir(dir int, f *os.File) error {
	sync := func() error {
		fd, err := openAt(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Fsync(fd)
	}
	err := sync()
	if errors.Is(err, unix.EACCES) {
		err = asAgent(sync)
	}
	if errors.Is(err, unix.EACCES) && f != nil {
		err = unix.Syncfs(int(f.Fd()))
	}
	return err
}

// asAgent runs fn with the agent's own rights: on another goroutine, which the runtime never puts on the calling
// thread while that is locked.
func asAgent(fn func() error) error {
	done := make(chan error, 1)
	go func() { done <- fn() }()
	return <-done
}
