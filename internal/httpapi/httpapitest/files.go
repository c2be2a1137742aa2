package httpapitest

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/problem"
	"github.com/space-sandbox/space/internal/sandbox"
)

// home is where relative paths begin.
const home = "home/user"

// ProxyFiles keeps each sandbox's files in a temporary directory. Parents are always made. Users, modes of what is
// written and if_match mean nothing; watch tells of one new file and ends.
func (f *Fake) ProxyFiles(w http.ResponseWriter, r *http.Request, ref, action string) {
	box, err := f.GetSandbox(r.Context(), ref)
	var root *os.Root
	if err == nil {
		root, err = f.root(box.ID)
	}
	if err == nil {
		q := r.URL.Query()
		err = (&tree{root: root, q: q, name: inside(q.Get("path"))}).serve(w, r, action)
	}
	if err != nil {
		problem.Write(w, fileError(r.URL.Query().Get("path"), err), problem.Options{})
	}
}

func (f *Fake) root(id sandbox.ID) (*os.Root, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if root, ok := f.files[id]; ok {
		return root, nil
	}
	dir, err := os.MkdirTemp("", "files-")
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	f.files[id] = root
	return root, errors.Join(root.MkdirAll(home, 0o755), root.MkdirAll("tmp", 0o755))
}

func inside(p string) string {
	if !path.IsAbs(p) {
		p = home + "/" + p
	}
	return path.Join(".", p)
}

func fileError(p string, err error) error {
	var e *sandbox.Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, fs.ErrNotExist):
		return &sandbox.Error{Code: sandbox.CodeNotFound, Message: "there is no such file", Cause: p}
	case errors.Is(err, fs.ErrExist):
		return &sandbox.Error{Code: sandbox.CodeAlreadyExists, Message: "something is there already", Cause: p}
	}
	return &sandbox.Error{Code: sandbox.CodeInvalidArgument, Message: "that does not work", Cause: err.Error()}
}

// tree is one request on one sandbox's files.
type tree struct {
	root *os.Root
	q    url.Values
	name string
}

func (t *tree) serve(w http.ResponseWriter, r *http.Request, action string) error {
	switch r.Method + " " + action {
	case "GET ":
		return t.get(w, r)
	case "PUT ":
		return t.put(w, r)
	case "DELETE ":
		return t.remove(w)
	case "GET stat":
		return t.stat(w, t.name)
	case "GET list":
		return t.list(w)
	case "POST mkdir":
		if err := t.root.MkdirAll(t.name, 0o755); err != nil {
			return err
		}
		return t.stat(w, t.name)
	case "POST move":
		to := inside(t.q.Get("to"))
		if err := t.root.Rename(t.name, to); err != nil {
			return err
		}
		return t.stat(w, to)
	case "GET archive":
		w.Header().Set("Content-Type", "application/x-tar")
		tw := tar.NewWriter(w)
		sub, err := fs.Sub(t.root.FS(), t.name)
		if err != nil {
			return err
		}
		if err := errors.Join(tw.AddFS(sub), tw.Close()); err != nil {
			panic(http.ErrAbortHandler)
		}
		return nil
	case "PUT archive":
		return t.unpack(w, r)
	case "GET watch":
		return t.watch(w, r)
	}
	return sandbox.Errorf(sandbox.CodeMethodNotAllowed, "no %s %s", r.Method, action)
}

func (t *tree) isDirectory() bool {
	info, err := t.root.Stat(t.name)
	return err == nil && info.IsDir() || strings.HasSuffix(t.q.Get("path"), "/")
}

func (t *tree) get(w http.ResponseWriter, r *http.Request) error {
	if t.isDirectory() {
		return &sandbox.Error{Code: sandbox.CodeIsDirectory, Message: "a directory is where a file is meant", Cause: t.q.Get("path")}
	}
	f, err := t.root.Open(t.name)
	if err != nil {
		return err
	}
	defer f.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", time.Time{}, f)
	return nil
}

func (t *tree) put(w http.ResponseWriter, r *http.Request) error {
	if t.isDirectory() {
		return &sandbox.Error{Code: sandbox.CodeIsDirectory, Message: "a directory is where a file is meant", Cause: t.q.Get("path")}
	}
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	if err := errors.Join(t.root.MkdirAll(path.Dir(t.name), 0o755), t.root.WriteFile(t.name, data, 0o644)); err != nil {
		return err
	}
	sum := sha256.Sum256(data)
	writeJSON(w, apiv1.WrittenFile{Path: t.q.Get("path"), SizeBytes: int64(len(data)), SHA256: hex.EncodeToString(sum[:])})
	return nil
}

func (t *tree) remove(w http.ResponseWriter) error {
	_, err := t.root.Lstat(t.name)
	if err != nil && (t.q.Get("missing_ok") != "true" || !errors.Is(err, fs.ErrNotExist)) {
		return err
	}
	remove := t.root.Remove
	if t.q.Get("recursive") == "true" {
		remove = t.root.RemoveAll
	}
	if err := remove(t.name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &sandbox.Error{Code: sandbox.CodeNotEmpty, Message: "the directory is not empty", Err: err}
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (t *tree) info(name string) (apiv1.FileInfo, error) {
	st, err := t.root.Lstat(name)
	if err != nil {
		return apiv1.FileInfo{}, err
	}
	info := apiv1.FileInfo{Path: "/" + name, Type: apiv1.FileTypeFile, SizeBytes: st.Size(), Mode: fmt.Sprintf("%04o", st.Mode().Perm()),
		Owner: "user", ModifiedAt: st.ModTime().UTC(), XAttrs: map[string]string{}}
	switch {
	case st.IsDir():
		info.Type = apiv1.FileTypeDirectory
	case st.Mode()&fs.ModeSymlink != 0:
		to, err := t.root.Readlink(name)
		if err != nil {
			return info, err
		}
		info.Type, info.SymlinkTarget = apiv1.FileTypeSymlink, &to
	}
	return info, nil
}

func (t *tree) stat(w http.ResponseWriter, name string) error {
	info, err := t.info(name)
	if err != nil {
		return err
	}
	writeJSON(w, info)
	return nil
}

// list has no depth; a cursor is the number of entries before it.
func (t *tree) list(w http.ResponseWriter) error {
	entries, err := fs.ReadDir(t.root.FS(), t.name)
	if err != nil {
		return err
	}
	skip, _ := strconv.Atoi(t.q.Get("cursor"))
	limit, err := strconv.Atoi(t.q.Get("limit"))
	if err != nil {
		limit = len(entries)
	}
	page := apiv1.FileList{Items: []apiv1.FileInfo{}}
	for _, e := range entries[min(skip, len(entries)):] {
		if len(page.Items) == limit {
			page.NextCursor = strconv.Itoa(skip + limit)
			break
		}
		info, err := t.info(path.Join(t.name, e.Name()))
		if err != nil {
			return err
		}
		page.Items = append(page.Items, info)
	}
	writeJSON(w, page)
	return nil
}

func (t *tree) unpack(w http.ResponseWriter, r *http.Request) error {
	out := apiv1.UnpackedArchive{Path: "/" + t.name}
	for tr := tar.NewReader(r.Body); ; out.Entries++ {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			writeJSON(w, out)
			return nil
		}
		if err != nil {
			return err
		}
		name := path.Join(t.name, h.Name)
		switch h.Typeflag {
		case tar.TypeDir:
			err = t.root.MkdirAll(name, 0o755)
		case tar.TypeSymlink:
			_ = t.root.Remove(name) // of an earlier archive
			err = errors.Join(t.root.MkdirAll(path.Dir(name), 0o755), t.root.Symlink(h.Linkname, name))
		default:
			data, rerr := io.ReadAll(tr)
			out.SizeBytes += int64(len(data))
			err = errors.Join(rerr, t.root.MkdirAll(path.Dir(name), 0o755), t.root.WriteFile(name, data, fs.FileMode(h.Mode).Perm()))
		}
		if err != nil {
			return err
		}
	}
}

func (t *tree) watch(w http.ResponseWriter, r *http.Request) error {
	w.Header().Set("Content-Type", "text/event-stream")
	id := 1
	if r.Header.Get("Last-Event-ID") != "" {
		fmt.Fprintf(w, "id: 1\nevent: overflow\ndata: {\"type\":\"overflow\",\"path\":\"/%s\"}\n\n", t.name)
		id++
	}
	body, err := json.Marshal(apiv1.FileEvent{Type: apiv1.FileCreated, Path: "/" + t.name + "/new"})
	if err != nil {
		return err
	}
	fmt.Fprintf(w, ": hello\n\nid: %d\nevent: create\ndata: %s\n\n", id, body)
	return nil
}
