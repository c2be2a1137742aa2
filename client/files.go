package client

import (
	"context"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"

	apiv1 "github.com/space-sandbox/space/api/v1"
)

// FileOptions says for whom a file is read or written.
type FileOptions struct {
	// User in the guest; empty: the template's. Relative paths start in this user's home.
	User string
	// Size of what WriteFile sends, when it is known; 0 means unknown.
	Size int64
	// Mode is the permissions of the file that WriteFile writes, such as 0o755; 0 leaves them to the server: those of the
	// file that is replaced, else its default.
	Mode fs.FileMode
	// CreateParents makes WriteFile create directories that are missing.
	CreateParents bool
}

// File is the content of a file in a sandbox. Close it.
type File struct {
	io.ReadCloser
	Size int64 // -1 when the server did not say
}

// ReadFile opens a file in a sandbox for reading. Reading it to io.EOF means that all of it was there.
func (c *Client) ReadFile(ctx context.Context, ref, path string, opts FileOptions) (*File, error) {
	resp, err := c.send(ctx, call{method: http.MethodGet, path: join("sandboxes", ref, "files"), query: fileQuery(path, opts)}) //nolint:bodyclose // the File's Close does
	if err != nil {
		return nil, err
	}
	return &File{ReadCloser: resp.Body, Size: resp.ContentLength}, nil
}

// WriteFile writes all of r to a file in a sandbox. When it returns without an error, all of it is on the guest's disk;
// else what was there before still is.
func (c *Client) WriteFile(ctx context.Context, ref, path string, r io.Reader, opts FileOptions) (*apiv1.WrittenFile, error) {
	size := opts.Size
	if size == 0 {
		size = -1
	}
	q := fileQuery(path, opts)
	if opts.Mode != 0 {
		q.Set("mode", strconv.FormatUint(uint64(opts.Mode.Perm()), 8))
	}
	if opts.CreateParents {
		q.Set("create_parents", "true")
	}
	return do[apiv1.WrittenFile](ctx, c, call{method: http.MethodPut, path: join("sandboxes", ref, "files"), query: q, body: r, size: size})
}

func fileQuery(path string, opts FileOptions) url.Values {
	q := url.Values{"path": {path}}
	if opts.User != "" {
		q.Set("user", opts.User)
	}
	return q
}
