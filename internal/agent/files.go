package agent

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/sandbox"
)

// The raw route for files:
//
//	GET /files?path=&user=                                  the content of a regular file
//	PUT /files?path=&user=&mode=0644&create_parents=true    replaces or makes a file; answers path, size_bytes, sha256
//
// Both are done as the user (see asUser); "" is root. Relative paths begin at that user's home. Errors are JSON:
// code, message, cause, remedy.

const (
	maxTransfers = 64 // files on their way at once: each holds a thread while it is opened or written
	copyBuffer   = 256 << 10
)

// fileRequest is a checked query of /files.
type fileRequest struct {
	account       account
	path          string // absolute
	mode          int    // -1 when not given
	createParents bool
}

// parseFileRequest checks the query; keys other than allowed are refused.
func (s *Server) parseFileRequest(rawQuery string, allowed ...string) (fileRequest, error) {
	q, err := url.ParseQuery(rawQuery)
	if err != nil {
		return fileRequest{}, badField("query", "is malformed")
	}
	for key, values := range q {
		known := false
		for _, a := range allowed {
			known = known || a == key
		}
		if !known {
			return fileRequest{}, &sandbox.Error{Code: sandbox.CodeUnknownField, Message: "unknown parameter",
				Cause: fmt.Sprintf("%.100q", key), Remedy: "use only " + strings.Join(allowed, ", ")}
		}
		if len(values) != 1 {
			return fileRequest{}, badField(key, "is given more than once")
		}
	}
	req := fileRequest{mode: -1}
	if m := q.Get("mode"); m != "" {
		mode, err := strconv.ParseUint(m, 8, 32)
		if err != nil || mode > 0o7777 {
			return fileRequest{}, badField("mode", "must be an octal number of at most 7777")
		}
		req.mode = int(mode)
	}
	if c := q.Get("create_parents"); c != "" {
		if req.createParents, err = strconv.ParseBool(c); err != nil {
			return fileRequest{}, badField("create_parents", "must be true or false")
		}
	}
	return req, s.resolve(&req, q.Get("path"), q.Get("user"))
}

// resolve finds the user and makes the path absolute.
func (s *Server) resolve(req *fileRequest, p, user string) error {
	if p == "" {
		return badField("path", "must not be empty")
	}
	if err := checkText("path", p, maxPath); err != nil {
		return err
	}
	if err := checkText("user", user, maxUserName); err != nil {
		return err
	}
	a, err := s.table.users.lookup(user)
	switch {
	case errors.Is(err, errUserUnknown):
		return &sandbox.Error{Code: sandbox.CodeNotFound, Message: "the user does not exist",
			Cause: err.Error(), Remedy: "name a user of this sandbox, or a uid"}
	case errors.Is(err, errUserRefused):
		return &sandbox.Error{Code: sandbox.CodePermissionDenied, Message: "files of that user are out of reach", Cause: err.Error()}
	case err != nil:
		return err
	}
	if !path.IsAbs(p) {
		p = a.homeDir() + "/" + p
	}
	req.account, req.path = a, p
	return nil
}

// getFile answers GET /files.
func (s *Server) getFile(w http.ResponseWriter, r *http.Request) {
	release, err := takePlace(s.transfers, "file transfers")
	if err != nil {
		writeError(w, err)
		return
	}
	defer release()
	req, err := s.parseFileRequest(r.URL.RawQuery, "path", "user")
	if err != nil {
		writeError(w, err)
		return
	}
	var f *os.File
	var size int64
	err = asUser(req.account, func() (err error) {
		f, size, err = openRegular(req.path)
		return err
	})
	if err != nil {
		s.refuseFile(w, req.path, err)
		return
	}
	defer f.Close()
	sendFile(w, f, size)
}

// refuseFile answers with what err means, and logs what it does not mean to the caller.
func (s *Server) refuseFile(w http.ResponseWriter, p string, err error) {
	err = fileError(p, err)
	if sandbox.CodeOf(err) == sandbox.CodeInternal {
		s.cfg.Logger.Warn("a file could not be used", "path", p, "error", err)
	}
	writeError(w, err)
}

// sendFile answers with size bytes of f; a file that shrinks meanwhile breaks the answer off. Files of size 0 may be
// the kernel's (/proc), whose size is known only at their end.
func sendFile(w http.ResponseWriter, f io.Reader, size int64) {
	w.Header().Set("Content-Type", "application/octet-stream")
	if size > 0 {
		w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
		f = io.LimitReader(f, size)
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{f}, make([]byte, copyBuffer))
	if err != nil || n < size {
		panic(http.ErrAbortHandler) // the only way to say that an answer is not whole
	}
}

// openRegular opens a regular file for reading, as the calling thread's user. Anything else is not even opened:
// opening a device may have effects, and opening a fifo may block.
func openRegular(p string) (*os.File, int64, error) {
	var st unix.Stat_t
	if err := unix.Stat(p, &st); err != nil {
		return nil, 0, err
	}
	if err := regular(&st); err != nil {
		return nil, 0, err
	}
	fd, err := openAt(unix.AT_FDCWD, p, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return nil, 0, err
	}
	f := os.NewFile(uintptr(fd), "file")
	if err = unix.Fstat(fd, &st); err == nil {
		err = regular(&st)
	}
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, st.Size, nil
}

// openAt opens without following the links of /proc that lead to other processes' files, roots and directories.
func openAt(dir int, p string, flags uint64) (int, error) {
	for {
		fd, err := unix.Openat2(dir, p, &unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS})
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
			continue
		}
		return fd, err
	}
}

var errSpecial = errors.New("it is a device, pipe or socket")

func regular(st *unix.Stat_t) error {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return nil
	case unix.S_IFDIR:
		return unix.EISDIR
	}
	return errSpecial
}

// fileError is what err means to the caller.
func fileError(p string, err error) error {
	var e *sandbox.Error
	if errors.As(err, &e) {
		return e
	}
	e = &sandbox.Error{Code: sandbox.CodeInternal, Message: "the file could not be used", Err: err}
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		e.Code, e.Message = sandbox.CodeNotFound, "the file or its directory does not exist"
		e.Remedy = "check the path, or create its parents (create_parents=true)"
	case errors.Is(err, unix.EISDIR):
		e.Code, e.Message, e.Remedy = sandbox.CodeIsDirectory, "the path is a directory", "name a file"
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.EROFS):
		e.Code, e.Message, e.Remedy = sandbox.CodePermissionDenied, "the user may not do this", "use another user or path"
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		e.Code, e.Message, e.Remedy = sandbox.CodeGuestDiskFull, "the sandbox's disk is full", "delete something in the sandbox"
	case errors.Is(err, unix.ENAMETOOLONG), errors.Is(err, unix.ELOOP), errors.Is(err, unix.EINVAL),
		errors.Is(err, unix.EFBIG), errors.Is(err, errSpecial), errors.Is(err, unix.ENXIO):
		e.Code, e.Message, e.Remedy = sandbox.CodeInvalidArgument, "the path cannot be used", "name a regular file"
	}
	e.Cause = cleanText(fmt.Sprintf("%.300q: %s", p, err), maxErrorMessage)
	return e
}
