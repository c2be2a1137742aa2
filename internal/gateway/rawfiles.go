package gateway

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/guest"
	"github.com/space-sandbox/space/internal/sandbox"
)

// fileRoute is one route for files of a guest. Bodies pass through; small answers are checked and written anew.
type fileRoute struct {
	method, action string
	parameters     []string // besides path and user
	do             func(t *transfer, w http.ResponseWriter, r *http.Request, q url.Values) error
}

func fileRoutes() []fileRoute {
	return []fileRoute{
		{http.MethodGet, "", nil, (*transfer).get},
		{http.MethodPut, "", []string{"mode", "create_parents", "if_match", "write"}, (*transfer).put},
		{http.MethodDelete, "", []string{"recursive", "missing_ok"}, (*transfer).remove},
		{http.MethodGet, "stat", []string{"follow"}, (*transfer).stat},
		{http.MethodGet, "list", []string{"depth", "limit", "cursor"}, (*transfer).list},
		{http.MethodPost, "mkdir", []string{"mode", "create_parents"}, (*transfer).mkdir},
		{http.MethodPost, "move", []string{"to", "overwrite"}, (*transfer).move},
		{http.MethodGet, "watch", []string{"recursive"}, (*transfer).watch},
		{http.MethodGet, "archive", nil, (*transfer).pack},
		{http.MethodPut, "archive", []string{"create_parents"}, (*transfer).unpack},
	}
}

// fileRouteOf finds the route of a method and what follows "files" in a path. HEAD is GET without the body.
func fileRouteOf(method string, rest []string) (fileRoute, error) {
	action := ""
	if method == http.MethodHead {
		method = http.MethodGet
	}
	if len(rest) == 1 {
		if action = rest[0]; action == "" {
			return fileRoute{}, sandbox.Errorf(sandbox.CodeNotFound, "no such route")
		}
	}
	known := false
	for _, route := range fileRoutes() {
		if route.action == action {
			if known = true; route.method == method {
				return route, nil
			}
		}
	}
	if !known {
		return fileRoute{}, sandbox.Errorf(sandbox.CodeNotFound, "no such route")
	}
	return fileRoute{}, noMethod(method)
}

func (f fileRoute) serve(t *transfer, w http.ResponseWriter, r *http.Request) error {
	q, err := rawQuery(r, append([]string{"path", "user"}, f.parameters...)...)
	if err != nil {
		return err
	}
	return f.do(t, w, r, q)
}

func (t *transfer) get(w http.ResponseWriter, r *http.Request, q url.Values) error {
	file, err := t.rt.guest.GetFile(t.ctx, q, r.Header.Get("Range"))
	if err != nil {
		return err
	}
	head, status := w.Header(), http.StatusOK
	head.Set("Accept-Ranges", "bytes")
	if p := file.Part; p != nil {
		status = http.StatusPartialContent
		head.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", p.First, p.Last, p.Total))
	}
	return t.pass(w, r, file, status, "application/octet-stream")
}

func (t *transfer) pack(w http.ResponseWriter, r *http.Request, q url.Values) error {
	file, err := t.rt.guest.GetArchive(t.ctx, q)
	if err != nil {
		return err
	}
	return t.pass(w, r, file, http.StatusOK, "application/x-tar")
}

// watch passes events on as they come: what the guest has sent is in the client's hands before more is read.
func (t *transfer) watch(w http.ResponseWriter, r *http.Request, q url.Values) error {
	file, err := t.rt.guest.WatchFiles(t.ctx, q, r.Header.Get("Last-Event-ID") != "")
	if err != nil {
		return err
	}
	return t.pass(flushing{w, http.NewResponseController(w)}, r, file, http.StatusOK, "text/event-stream")
}

// flushing sends each piece at once.
type flushing struct {
	http.ResponseWriter
	rc *http.ResponseController
}

func (f flushing) WriteHeader(status int) {
	f.ResponseWriter.WriteHeader(status)
	_ = f.rc.Flush() // what went wrong is seen by the next write
}

func (f flushing) Write(p []byte) (int, error) {
	n, err := f.ResponseWriter.Write(p)
	if err == nil {
		err = f.rc.Flush()
	}
	return n, err
}

// pass sends a body of the guest on and closes it.
func (t *transfer) pass(w http.ResponseWriter, r *http.Request, file *guest.File, status int, media string) error {
	defer file.Body.Close()
	moved, stop := t.guard()
	defer stop()
	head := w.Header()
	head.Set("Content-Type", media)
	head.Set("X-Content-Type-Options", "nosniff")
	head.Set("Cache-Control", "no-store")
	if file.Size >= 0 {
		head.Set("Content-Length", strconv.FormatInt(file.Size, 10))
	}
	w.WriteHeader(status)
	if r.Method == http.MethodHead {
		return nil
	}
	// The reader is hidden from CopyBuffer's shortcuts, so that each piece counts as movement.
	if _, err := io.CopyBuffer(struct{ io.Writer }{w}, &movingReader{file.Body, moved}, make([]byte, copyBuffer)); err != nil {
		panic(http.ErrAbortHandler) // the one way to end a body visibly too early
	}
	return nil
}

func (t *transfer) put(w http.ResponseWriter, r *http.Request, q url.Values) error {
	moved, stop := t.guard()
	defer stop()
	stored, err := t.rt.guest.PutFile(t.ctx, q, &movingReader{r.Body, moved}, r.ContentLength)
	if err != nil {
		return err
	}
	return writeJSON(w, apiv1.WrittenFile{Path: stored.Path, SizeBytes: stored.SizeBytes, SHA256: stored.SHA256})
}

func (t *transfer) unpack(w http.ResponseWriter, r *http.Request, q url.Values) error {
	moved, stop := t.guard()
	defer stop()
	done, err := t.rt.guest.PutArchive(t.ctx, q, &movingReader{r.Body, moved}, r.ContentLength)
	if err != nil {
		return err
	}
	return writeJSON(w, done)
}

func (t *transfer) remove(w http.ResponseWriter, _ *http.Request, q url.Values) error {
	if err := t.rt.guest.DeleteFile(t.ctx, q); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (t *transfer) stat(w http.ResponseWriter, _ *http.Request, q url.Values) error {
	info, err := t.rt.guest.StatFile(t.ctx, q)
	if err != nil {
		return err
	}
	return writeJSON(w, info)
}

func (t *transfer) mkdir(w http.ResponseWriter, _ *http.Request, q url.Values) error {
	info, err := t.rt.guest.MakeDirectory(t.ctx, q)
	if err != nil {
		return err
	}
	return writeJSON(w, info)
}

func (t *transfer) move(w http.ResponseWriter, _ *http.Request, q url.Values) error {
	info, err := t.rt.guest.MoveFile(t.ctx, q)
	if err != nil {
		return err
	}
	return writeJSON(w, info)
}

func (t *transfer) list(w http.ResponseWriter, _ *http.Request, q url.Values) error {
	page, err := t.rt.guest.ListFiles(t.ctx, q)
	if err != nil {
		return err
	}
	return writeJSON(w, page)
}
