package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/sandbox"
)

// The raw routes for files. All of them are done as the user (see asUser); "" is root. Relative paths begin at that
// user's home. Errors are JSON: code, message, cause, remedy.
//
//	GET    /files           the content of a regular file, or the part that a Range header names
//	PUT    /files           replaces or makes a file; answers path, size_bytes, sha256
//	DELETE /files           removes a file or directory; answers 204
//	GET    /files/stat      describes what is there
//	GET    /files/list      describes what is in a directory, page by page
//	POST   /files/mkdir     makes a directory and describes it
//	POST   /files/move      renames and describes the result
//	GET    /files/watch     server-sent events of what changes
//	GET    /files/archive   a tar of a directory's content, or of a file
//	PUT    /files/archive   unpacks a tar in a directory

const (
	maxTransfers = 64 // files on their way at once: each holds a thread while it is opened or written
	maxWatches   = 32 // each holds a thread and an inotify instance
	copyBuffer   = 256 << 10
)

// fileRequest is a checked query of a file route. What was not given is the zero value.
type fileRequest struct {
	account       account
	path          string // absolute
	to            string // absolute
	mode          int    // -1 when not given
	ifMatch       string // 64 hex digits
	inPlace       bool
	createParents bool
	recursive     bool
	missingOK     bool
	overwrite     bool
	follow        bool
	depth, limit  int
	after         []string // the names of the cursor
}

func (s *Server) fileRoutes(mux *http.ServeMux) {
	mux.HandleFunc("GET /files", s.fileRoute(s.transfers, s.getFile, "path", "user"))
	mux.HandleFunc("PUT /files", s.fileRoute(s.transfers, s.putFile, "path", "user", "mode", "create_parents", "if_match", "write"))
	mux.HandleFunc("DELETE /files", s.fileRoute(s.transfers, s.deleteFile, "path", "user", "recursive", "missing_ok"))
	mux.HandleFunc("GET /files/stat", s.fileRoute(s.transfers, s.statFile, "path", "user", "follow"))
	mux.HandleFunc("GET /files/list", s.fileRoute(s.transfers, s.listFiles, "path", "user", "depth", "limit", "cursor"))
	mux.HandleFunc("POST /files/mkdir", s.fileRoute(s.transfers, s.makeDirectory, "path", "user", "mode", "create_parents"))
	mux.HandleFunc("POST /files/move", s.fileRoute(s.transfers, s.moveFile, "path", "user", "to", "overwrite"))
	mux.HandleFunc("GET /files/watch", s.fileRoute(s.watches, s.watchFiles, "path", "user", "recursive"))
	mux.HandleFunc("GET /files/archive", s.fileRoute(s.transfers, s.getArchive, "path", "user"))
	mux.HandleFunc("PUT /files/archive", s.fileRoute(s.transfers, s.putArchive, "path", "user", "create_parents"))
}

// fileHandler answers a checked request; an error means that nothing has been written yet.
type fileHandler func(w http.ResponseWriter, r *http.Request, req fileRequest) error

// fileRoute takes a place, checks the query and answers errors.
func (s *Server) fileRoute(places chan struct{}, serve fileHandler, allowed ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		release, err := takePlace(places, "file transfers")
		if err != nil {
			writeError(w, err)
			return
		}
		defer release()
		req, err := s.parseFileRequest(r.URL.RawQuery, allowed...)
		if err != nil {
			writeError(w, err)
			return
		}
		if err := serve(w, r, req); err != nil {
			s.refuseFile(r.Context(), w, req.path, err)
		}
	}
}

// parseFileRequest checks the query; keys other than allowed are refused.
func (s *Server) parseFileRequest(rawQuery string, allowed ...string) (fileRequest, error) {
	q, err := url.ParseQuery(rawQuery)
	if err != nil {
		return fileRequest{}, badField("query", "is malformed")
	}
	for key, values := range q {
		if !slices.Contains(allowed, key) {
			return fileRequest{}, &sandbox.Error{Code: sandbox.CodeUnknownField, Message: "unknown parameter",
				Cause: fmt.Sprintf("%.100q", key), Remedy: "use only " + strings.Join(allowed, ", ")}
		}
		if len(values) != 1 {
			return fileRequest{}, badField(key, "is given more than once")
		}
	}
	req := fileRequest{mode: -1, depth: 1, limit: defaultListLimit}
	if err := req.parse(q); err != nil {
		return fileRequest{}, err
	}
	if slices.Contains(allowed, "to") {
		if err := s.resolve(&req, q.Get("to"), "to", q.Get("user")); err != nil {
			return fileRequest{}, err
		}
		req.to = req.path
	}
	return req, s.resolve(&req, q.Get("path"), "path", q.Get("user"))
}

var sumPattern = regexp.MustCompile(`^[0-9a-fA-F]{64}$`)

// parse reads what is neither a path nor a user.
func (req *fileRequest) parse(q url.Values) error {
	if m := q.Get("mode"); m != "" {
		mode, err := strconv.ParseUint(m, 8, 32)
		if err != nil || mode > 0o7777 {
			return badField("mode", "must be an octal number of at most 7777")
		}
		req.mode = int(mode)
	}
	for key, to := range map[string]*bool{"create_parents": &req.createParents, "recursive": &req.recursive,
		"missing_ok": &req.missingOK, "overwrite": &req.overwrite, "follow": &req.follow} {
		if v := q.Get(key); v != "" {
			var err error
			if *to, err = strconv.ParseBool(v); err != nil {
				return badField(key, "must be true or false")
			}
		}
	}
	for key, n := range map[string]struct {
		to   *int
		most int
	}{"depth": {&req.depth, maxListDepth}, "limit": {&req.limit, maxListLimit}} {
		if v := q.Get(key); v != "" {
			var err error
			if *n.to, err = strconv.Atoi(v); err != nil || *n.to < 1 || *n.to > n.most {
				return badField(key, fmt.Sprintf("must be a number from 1 to %d", n.most))
			}
		}
	}
	if req.ifMatch = strings.ToLower(q.Get("if_match")); q.Has("if_match") && !sumPattern.MatchString(req.ifMatch) {
		return badField("if_match", "must be a SHA-256 of 64 hex digits")
	}
	switch q.Get("write") {
	case "", "atomic":
	case "in_place":
		req.inPlace = true
	default:
		return badField("write", "must be atomic or in_place")
	}
	var err error
	req.after, err = parseCursor(q.Get("cursor"))
	return err
}

// resolve finds the user and makes the path absolute.
func (s *Server) resolve(req *fileRequest, p, field, user string) error {
	if p == "" {
		return badField(field, "must not be empty")
	}
	if err := checkText(field, p, maxPath); err != nil {
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
func (s *Server) getFile(w http.ResponseWriter, r *http.Request, req fileRequest) error {
	var f *os.File
	var size int64
	err := asUser(req.account, func() (err error) {
		f, size, err = openRegular(req.path)
		return err
	})
	if err != nil {
		return err
	}
	defer f.Close()
	part, err := parseRange(r.Header.Get("Range"), size)
	if err != nil {
		return err
	}
	if part != nil {
		if _, err := f.Seek(part.first, io.SeekStart); err != nil {
			return err
		}
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", part.first, part.last, size))
		size = part.last - part.first + 1
	}
	sendFile(w, f, size, part != nil)
	return nil
}

// refuseFile answers with what err means, and logs what it does not mean to the caller.
func (s *Server) refuseFile(ctx context.Context, w http.ResponseWriter, p string, err error) {
	err = fileError(p, err)
	if sandbox.CodeOf(err) == sandbox.CodeInternal {
		s.cfg.Logger.WarnContext(ctx, "a file could not be used", "path", p, "error", err)
	}
	writeError(w, err)
}

// sendFile answers with size bytes of f; a file that shrinks meanwhile breaks the answer off. Files of size 0 may be
// the kernel's (/proc), whose size is known only at their end.
func sendFile(w http.ResponseWriter, f io.Reader, size int64, part bool) {
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Accept-Ranges", "bytes")
	if size > 0 {
		w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
		f = io.LimitReader(f, size)
	}
	if part {
		w.WriteHeader(http.StatusPartialContent)
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

var (
	errSpecial      = errors.New("it is a device, pipe or socket")
	errMismatch     = errors.New("the SHA-256 is another")
	errNotDirectory = errors.New("it is not a directory")
	errTooMany      = errors.New("more than the agent takes on")
)

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
	case errors.Is(err, errMismatch):
		e.Code, e.Message, e.Remedy = sandbox.CodeContentMismatch, "the file's content is not what if_match says", "read the file again"
	case errors.Is(err, errNotDirectory):
		e.Code, e.Message, e.Remedy = sandbox.CodeNotDirectory, "the path is not a directory", "name a directory"
	case errors.Is(err, unix.EEXIST):
		e.Code, e.Message, e.Remedy = sandbox.CodeAlreadyExists, "something is at the path already", "choose another name, or allow what is there (overwrite, create_parents)"
	case errors.Is(err, unix.ENOTEMPTY):
		e.Code, e.Message, e.Remedy = sandbox.CodeNotEmpty, "the directory is not empty", "remove what is in it (recursive=true)"
	case errors.Is(err, unix.ETXTBSY):
		e.Code, e.Message, e.Remedy = sandbox.CodeInvalidState, "the file is being executed", "replace it (write=atomic)"
	case errors.Is(err, unix.EBUSY):
		e.Code, e.Message, e.Remedy = sandbox.CodeInvalidState, "the path is in use by the system", "choose another path"
	case errors.Is(err, unix.EXDEV):
		e.Code, e.Message, e.Remedy = sandbox.CodeInvalidArgument, "the two paths are on different file systems", "copy, then remove"
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.EROFS):
		e.Code, e.Message, e.Remedy = sandbox.CodePermissionDenied, "the user may not do this", "use another user or path"
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		e.Code, e.Message, e.Remedy = sandbox.CodeGuestDiskFull, "the sandbox's disk is full", "delete something in the sandbox"
	case errors.Is(err, errTooMany):
		e.Code, e.Message, e.Remedy = sandbox.CodeInvalidArgument, "there are too many files, or they are nested too deep", "take a smaller part"
	case errors.Is(err, unix.ENAMETOOLONG), errors.Is(err, unix.ELOOP), errors.Is(err, unix.EINVAL),
		errors.Is(err, unix.EFBIG), errors.Is(err, errSpecial), errors.Is(err, unix.ENXIO):
		e.Code, e.Message, e.Remedy = sandbox.CodeInvalidArgument, "the path cannot be used", "name a regular file"
	}
	e.Cause = cleanText(fmt.Sprintf("%.300q: %s", p, err), maxErrorMessage)
	return e
}
