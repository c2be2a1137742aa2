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
func (s *Server) putFile(w http.ResponseWriter, r *http.Request) {
	release, err := takePlace(s.transfers, "file transfers")
	if err != nil {
		writeError(w, err)
		return
	}
	defer release()
	req, err := s.parseFileRequest(r.URL.RawQuery, "path", "user", "mode", "create_parents")
	if err != nil {
		writeError(w, err)
		return
	}
	var result stored
	err = asUser(req.account, func() (err error) {
		result, err = store(req, r.Body)
		return err
	})
	if err != nil {
		s.refuseFile(w, req.path, err)
		return
	}
	writeJSON(w, http.StatusOK, result)
}

// target is where a file is to be: a name in an opened directory.
type target struct {
	dir  int // O_PATH
	name string
	old  *unix.Stat_t // what is there now; nil for nothing
}

const (
	maxLinks   = 40 // as the kernel
	tempPrefix = ".space-upload-"
	newDirMode = 0o755
	newMode    = 0o644
)

// store writes body to a temporary file beside the target, and only when all of it is on the disk puts it in the
// target's place. It runs as the user.
func store(req fileRequest, body io.Reader) (stored, error) {
	t, err := findTarget(req.path, req.createParents)
	if err != nil {
		return stored{}, err
	}
	defer unix.Close(t.dir)
	temp := tempPrefix + rand.Text()
	fd, err := unix.Openat(t.dir, temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return stored{}, err
	}
	f := os.NewFile(uintptr(fd), temp)
	defer closeForExec(f)
	placed := false
	defer func() {
		if !placed {
			_ = unix.Unlinkat(t.dir, temp, 0) // the error that brought us here is the one to tell
		}
	}()
	sum := sha256.New()
	size, err := receive(f, sum, body)
	if err != nil {
		return stored{}, err
	}
	if err := t.dress(f, req.mode); err != nil {
		return stored{}, err
	}
	if err := f.Sync(); err != nil {
		return stored{}, err
	}
	if err := unix.Renameat(t.dir, temp, t.dir, t.name); err != nil {
		return stored{}, err
	}
	placed = true
	if err := syncDir(t.dir, f); err != nil {
		return stored{}, err
	}
	return stored{Path: req.path, SizeBytes: size, SHA256: hex.EncodeToString(sum.Sum(nil))}, nil
}

// closeForExec closes f and waits for children between fork and exec, which still have it open for writing: whoever is
// told that the file is there may run it at once.
func closeForExec(f *os.File) {
	f.Close()
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
		t := target{dir: dir, name: name}
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
	var st unix.Stat_t
	err := unix.Fstatat(t.dir, t.name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := regular(&st); err != nil {
		return err
	}
	t.old = &st
	return unix.Faccessat2(t.dir, t.name, unix.W_OK, unix.AT_EACCESS|unix.AT_SYMLINK_NOFOLLOW)
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

// dress gives the new file its mode, and owner and group of the file it replaces. A file of another owner, which the
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

// syncDir makes the new name durable. A directory that even the agent may not read is synced with its file system.
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
	if errors.Is(err, unix.EACCES) {
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
