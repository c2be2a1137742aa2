package client

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"

	apiv1 "github.com/space-sandbox/space/api/v1"
)

// FileOptions says for whom a file is read or written, and how.
type FileOptions struct {
	// User in the guest; empty: the template's. Relative paths start in this user's home.
	User string
	// Offset and Length select a part that ReadFile reads. Length 0: to the end. An offset behind the end is refused with
	// range_not_satisfiable.
	Offset, Length int64
	// Size of what WriteFile sends, when it is known; 0 means unknown.
	Size int64
	// Mode is the permissions of the file that WriteFile writes, such as 0o755; 0 leaves them to the server: those of the
	// file that is replaced, else its default.
	Mode fs.FileMode
	// CreateParents makes WriteFile and WriteArchive create directories that are missing.
	CreateParents bool
	// IfMatch makes WriteFile fail with content_mismatch unless the file has this SHA-256 (64 hex digits).
	IfMatch string
	// InPlace makes WriteFile write into the file instead of replacing it when all of it is there.
	InPlace bool
}

// File is the content of a file in a sandbox. Close it.
type File struct {
	io.ReadCloser
	Size int64 // of what is read; -1 when the server did not say
}

// ReadFile opens a file in a sandbox for reading. Reading it to io.EOF means that all of it was there.
func (c *Client) ReadFile(ctx context.Context, ref, path string, opts FileOptions) (*File, error) {
	head := http.Header{}
	if opts.Offset != 0 || opts.Length != 0 {
		span := "bytes=" + strconv.FormatInt(opts.Offset, 10) + "-"
		if opts.Length != 0 {
			span += strconv.FormatInt(opts.Offset+opts.Length-1, 10)
		}
		head.Set("Range", span)
	}
	resp, err := c.send(ctx, call{method: http.MethodGet, path: filesPath(ref), query: fileQuery(path, opts.User), header: head})
	if err != nil {
		return nil, err
	}
	if opts.Offset != 0 && resp.StatusCode != http.StatusPartialContent {
		resp.Body.Close()
		return nil, fmt.Errorf("the server does not give parts of %s (it has no size)", path)
	}
	return &File{ReadCloser: resp.Body, Size: resp.ContentLength}, nil
}

// WriteFile writes all of r to a file in a sandbox. When it returns without an error, all of it is on the guest's disk;
// else what was there before still is, unless it was to be written in place.
func (c *Client) WriteFile(ctx context.Context, ref, path string, r io.Reader, opts FileOptions) (*apiv1.WrittenFile, error) {
	q := fileQuery(path, opts.User)
	if opts.Mode != 0 {
		q.Set("mode", strconv.FormatUint(uint64(opts.Mode.Perm()), 8))
	}
	setFlag(q, "create_parents", opts.CreateParents)
	if opts.IfMatch != "" {
		q.Set("if_match", opts.IfMatch)
	}
	if opts.InPlace {
		q.Set("write", "in_place")
	}
	return do[apiv1.WrittenFile](ctx, c, call{method: http.MethodPut, path: filesPath(ref), query: q, body: r, size: knownSize(opts.Size)})
}

// RemoveOptions says how RemoveFile goes about it.
type RemoveOptions struct {
	User      string // in the guest; empty: the template's
	Recursive bool   // remove what is in a directory too
	MissingOK bool   // what does not exist is no error
}

// RemoveFile removes a file, a link or a directory.
func (c *Client) RemoveFile(ctx context.Context, ref, path string, opts RemoveOptions) error {
	q := fileQuery(path, opts.User)
	setFlag(q, "recursive", opts.Recursive)
	setFlag(q, "missing_ok", opts.MissingOK)
	resp, err := c.send(ctx, call{method: http.MethodDelete, path: filesPath(ref), query: q})
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// StatOptions says whose eyes StatFile looks with.
type StatOptions struct {
	User   string // in the guest; empty: the template's
	Follow bool   // describe what a link leads to, not the link
}

// StatFile describes what is at a path.
func (c *Client) StatFile(ctx context.Context, ref, path string, opts StatOptions) (*apiv1.FileInfo, error) {
	q := fileQuery(path, opts.User)
	setFlag(q, "follow", opts.Follow)
	return do[apiv1.FileInfo](ctx, c, call{method: http.MethodGet, path: filesPath(ref, "stat"), query: q})
}

// ListOptions selects a part of what is in a directory.
type ListOptions struct {
	User   string // in the guest; empty: the template's
	Depth  int    // levels of directories; 0: one
	Limit  int    // 1 to 1000; 0: the server's default
	Cursor string // NextCursor of the page before
}

// ListFiles describes one page of what is in a directory.
func (c *Client) ListFiles(ctx context.Context, ref, path string, opts ListOptions) (*apiv1.FileList, error) {
	q := fileQuery(path, opts.User)
	if opts.Depth != 0 {
		q.Set("depth", strconv.Itoa(opts.Depth))
	}
	if opts.Limit != 0 {
		q.Set("limit", strconv.Itoa(opts.Limit))
	}
	if opts.Cursor != "" {
		q.Set("cursor", opts.Cursor)
	}
	return do[apiv1.FileList](ctx, c, call{method: http.MethodGet, path: filesPath(ref, "list"), query: q})
}

// MakeDirectory makes a directory as user; "" is the template's.
func (c *Client) MakeDirectory(ctx context.Context, ref, user string, in apiv1.MakeDirectory) (*apiv1.FileInfo, error) {
	return do[apiv1.FileInfo](ctx, c, call{method: http.MethodPost, path: filesPath(ref, "mkdir"), query: userQuery(user), in: in})
}

// MoveFile renames a file or directory as user; "" is the template's.
func (c *Client) MoveFile(ctx context.Context, ref, user string, in apiv1.MoveFile) (*apiv1.FileInfo, error) {
	return do[apiv1.FileInfo](ctx, c, call{method: http.MethodPost, path: filesPath(ref, "move"), query: userQuery(user), in: in})
}

// ReadArchive opens a tar of what is in a directory, with names relative to it, or of one file. Of opts only User counts.
// The sandbox is not to be trusted: unpack it with os.Root or the like.
func (c *Client) ReadArchive(ctx context.Context, ref, path string, opts FileOptions) (*File, error) {
	resp, err := c.send(ctx, call{method: http.MethodGet, path: filesPath(ref, "archive"), query: fileQuery(path, opts.User)}) //nolint:bodyclose // the File's Close does
	if err != nil {
		return nil, err
	}
	return &File{ReadCloser: resp.Body, Size: resp.ContentLength}, nil
}

// WriteArchive unpacks a tar in a directory. When it fails, what was unpacked before stays, and the error's cause says
// how much that is. Of opts only User, Size and CreateParents count.
func (c *Client) WriteArchive(ctx context.Context, ref, path string, r io.Reader, opts FileOptions) (*apiv1.UnpackedArchive, error) {
	q := fileQuery(path, opts.User)
	setFlag(q, "create_parents", opts.CreateParents)
	return do[apiv1.UnpackedArchive](ctx, c, call{method: http.MethodPut, path: filesPath(ref, "archive"), query: q, body: r, size: knownSize(opts.Size)})
}

func filesPath(ref string, action ...string) string {
	return join(append([]string{"sandboxes", ref, "files"}, action...)...)
}

func knownSize(n int64) int64 {
	if n == 0 {
		return -1
	}
	return n
}

func fileQuery(path, user string) url.Values {
	q := userQuery(user)
	q.Set("path", path)
	return q
}

func userQuery(user string) url.Values {
	q := url.Values{}
	if user != "" {
		q.Set("user", user)
	}
	return q
}

func setFlag(q url.Values, name string, on bool) {
	if on {
		q.Set(name, "true")
	}
}
