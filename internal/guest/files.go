package guest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"sync"
	"time"

	problemv1 "github.com/space-sandbox/space/api/proto/problem/v1"
	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

const (
	maxJSONBytes = 64 << 10
	maxInfoBytes = 256 << 10 // a path and attributes
	maxListBytes = 4 << 20
	maxPath      = 8192            // a relative path below a home directory
	longTimeout  = 5 * time.Minute // of calls that go over whole directories
)

// File is the content of a file, an archive or a stream of events on its way out of a guest.
type File struct {
	// Size is how many bytes Body gives, -1 when that is known only at its end (the kernel's own files).
	Size int64
	// Part says which bytes of the file Body gives; nil: all of it.
	Part *Part
	// Body gives exactly Size bytes or an error. Close it.
	Body io.ReadCloser
}

// Part is a part of a file: the bytes from First to Last, both included, of Total.
type Part struct{ First, Last, Total int64 }

// Stored is what the agent says about a file it has stored.
type Stored struct {
	Path      string
	SizeBytes int64
	SHA256    string // 64 hex digits
}

// GetFile opens a file of the guest. The query goes to the agent unread: path, user. span is a Range header, or "".
func (c *Client) GetFile(ctx context.Context, query url.Values, span string) (*File, error) {
	head := http.Header{}
	if span != "" {
		head.Set("Range", span)
	}
	return c.open(ctx, c.bodies, fileCall{route: "/files", query: query, head: head}, callTimeout)
}

// GetArchive opens a tar of a directory or file of the guest: path, user. The guest looks at everything before it
// answers, which may take a while.
func (c *Client) GetArchive(ctx context.Context, query url.Values) (*File, error) {
	return c.open(ctx, c.bodies, fileCall{route: "/files/archive", query: query}, longTimeout)
}

// WatchFiles opens a stream of server-sent events: path, user, recursive. again says that the caller has seen one
// before, and may have missed events.
func (c *Client) WatchFiles(ctx context.Context, query url.Values, again bool) (*File, error) {
	head := http.Header{}
	if again {
		head.Set("Last-Event-ID", "0")
	}
	return c.open(ctx, c.shared, fileCall{route: "/files/watch", query: query, head: head}, callTimeout)
}

// open makes a request whose answer is a body to be passed on. It has to begin within the timeout.
func (c *Client) open(ctx context.Context, via *http.Client, call fileCall, timeout time.Duration) (*File, error) {
	call.method = http.MethodGet
	callCtx, cancel := c.guard(ctx)
	timer := time.AfterFunc(timeout, cancel)
	res, err := c.file(callCtx, via, call)
	if !timer.Stop() && ctx.Err() == nil {
		if err == nil {
			_ = res.Body.Close() // it is cut off already
		}
		cancel()
		return nil, tooSlow(errors.New("no answer to a file request"))
	}
	if err != nil {
		err = guardedError(ctx, callCtx, err)
		cancel()
		return nil, err
	}
	f := &File{Size: res.ContentLength, Body: &fileBody{ReadCloser: res.Body, ctx: ctx, guarded: callCtx, cancel: cancel}}
	f.Part, err = checkPart(res, call.head.Get("Range"))
	switch {
	case err != nil:
	case f.Size < -1:
		err = faultf("a file of %d bytes", f.Size)
	case f.Size == -1 && res.ProtoMajor == 1 && len(res.TransferEncoding) == 0:
		err = faultf("a body whose end is that of the connection") // it could not be told from one that is cut off
	}
	if err != nil {
		cancel()
		return nil, errors.Join(err, res.Body.Close())
	}
	return f, nil
}

// checkPart checks that a partial answer was asked for and says which part it is.
func checkPart(res *http.Response, span string) (*Part, error) {
	if res.StatusCode == http.StatusOK {
		return nil, nil
	}
	m := partPattern.FindStringSubmatch(res.Header.Get("Content-Range"))
	if res.StatusCode != http.StatusPartialContent || span == "" || m == nil {
		return nil, faultf("status %d to a request for %.60q", res.StatusCode, span)
	}
	var n [3]int64
	for i := range n {
		var err error
		if n[i], err = strconv.ParseInt(m[i+1], 10, 64); err != nil {
			return nil, faultf("part %.100q", m[0])
		}
	}
	p := &Part{First: n[0], Last: n[1], Total: n[2]}
	if p.First > p.Last || p.Last >= p.Total || res.ContentLength != p.Last-p.First+1 {
		return nil, faultf("part %.100q of %d bytes", m[0], res.ContentLength)
	}
	return p, nil
}

var partPattern = regexp.MustCompile(`^bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19})$`)

// fileBody is the body of a File.
type fileBody struct {
	io.ReadCloser
	ctx     context.Context
	guarded context.Context
	cancel  context.CancelFunc
}

func (b *fileBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == nil || errors.Is(err, io.EOF) {
		return n, err
	}
	return n, guardedError(b.ctx, b.guarded, err)
}

func (b *fileBody) Close() error {
	b.cancel()
	return b.ReadCloser.Close()
}

// PutFile stores body as a file of the guest. The query goes to the agent unread: path, user, mode, create_parents,
// if_match, write. length is the number of bytes of body, -1 when unknown. A body that fails (CodeInvalidArgument)
// leaves no half file, unless it was written in place.
// When the agent refuses early, body may still be read a moment after PutFile has returned; the bodies of a server's
// requests are safe for that.
func (c *Client) PutFile(ctx context.Context, query url.Values, body io.Reader, length int64) (Stored, error) {
	raw, err := c.sendBody(ctx, "/files", query, body, length)
	if err != nil {
		return Stored{}, err
	}
	return checkStored(raw, length)
}

// PutArchive unpacks a tar in a directory of the guest: path, user, create_parents. For body and length see PutFile; of
// a body that fails a part is unpacked.
func (c *Client) PutArchive(ctx context.Context, query url.Values, body io.Reader, length int64) (apiv1.UnpackedArchive, error) {
	raw, err := c.sendBody(ctx, "/files/archive", query, body, length)
	if err != nil {
		return apiv1.UnpackedArchive{}, err
	}
	return checkUnpacked(raw)
}

// sendBody makes a PUT and returns its small answer.
func (c *Client) sendBody(ctx context.Context, route string, query url.Values, body io.Reader, length int64) ([]byte, error) {
	callCtx, cancel := c.guard(ctx)
	defer cancel()
	src := &sentBody{r: body}
	res, err := c.file(callCtx, c.bodies, fileCall{method: http.MethodPut, route: route, query: query, body: src, length: length})
	if cause := src.failure(); err != nil && cause != nil {
		return nil, &sandbox.Error{Code: sandbox.CodeInvalidArgument, Message: "the body was cut off",
			Cause: cause.Error(), Remedy: "send it again", Err: cause}
	}
	if err != nil {
		return nil, guardedError(ctx, callCtx, err)
	}
	defer res.Body.Close()
	raw, err := readBounded(callCtx, cancel, res.Body, maxJSONBytes)
	if err != nil {
		return nil, guardedError(ctx, callCtx, err)
	}
	return raw, nil
}

// DeleteFile removes a file or directory: path, user, recursive, missing_ok.
func (c *Client) DeleteFile(ctx context.Context, query url.Values) error {
	_, err := c.small(ctx, fileCall{method: http.MethodDelete, route: "/files", query: query}, maxJSONBytes, longTimeout)
	return err
}

// StatFile describes what is at a path: path, user, follow.
func (c *Client) StatFile(ctx context.Context, query url.Values) (apiv1.FileInfo, error) {
	return c.info(ctx, fileCall{method: http.MethodGet, route: "/files/stat", query: query})
}

// MakeDirectory makes a directory: path, user, mode, create_parents.
func (c *Client) MakeDirectory(ctx context.Context, query url.Values) (apiv1.FileInfo, error) {
	return c.info(ctx, fileCall{method: http.MethodPost, route: "/files/mkdir", query: query})
}

// MoveFile renames: path, to, user, overwrite.
func (c *Client) MoveFile(ctx context.Context, query url.Values) (apiv1.FileInfo, error) {
	return c.info(ctx, fileCall{method: http.MethodPost, route: "/files/move", query: query})
}

func (c *Client) info(ctx context.Context, call fileCall) (apiv1.FileInfo, error) {
	raw, err := c.small(ctx, call, maxInfoBytes, callTimeout)
	if err != nil {
		return apiv1.FileInfo{}, err
	}
	var info apiv1.FileInfo
	if err := json.Unmarshal(raw, &info); err != nil {
		return apiv1.FileInfo{}, faultf("an answer that is not JSON")
	}
	return checkInfo(info)
}

// ListFiles describes one page of a directory: path, user, depth, limit, cursor.
func (c *Client) ListFiles(ctx context.Context, query url.Values) (apiv1.FileList, error) {
	raw, err := c.small(ctx, fileCall{method: http.MethodGet, route: "/files/list", query: query}, maxListBytes, longTimeout)
	if err != nil {
		return apiv1.FileList{}, err
	}
	return checkList(raw)
}

// small makes a call without a body whose answer is small.
func (c *Client) small(ctx context.Context, call fileCall, limit int64, timeout time.Duration) ([]byte, error) {
	callCtx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	res, err := c.file(callCtx, c.shared, call)
	if err == nil {
		defer res.Body.Close()
		var raw []byte
		if raw, err = readBounded(callCtx, cancel, res.Body, limit); err == nil {
			return raw, nil
		}
	}
	if callCtx.Err() != nil && ctx.Err() == nil {
		if _, ok := errors.AsType[*sandbox.Error](err); !ok {
			err = tooSlow(err)
		}
	}
	return nil, callError(ctx, err)
}

// sentBody remembers that it was the body that failed, not the guest.
type sentBody struct {
	r   io.Reader
	mu  sync.Mutex
	err error
}

func (b *sentBody) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		b.mu.Lock()
		b.err = err
		b.mu.Unlock()
	}
	return n, err
}

// Close leaves the body to its owner.
func (b *sentBody) Close() error { return nil }

func (b *sentBody) failure() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

// fileCall is one request to the routes for files.
type fileCall struct {
	method, route string
	query         url.Values
	head          http.Header
	body          io.ReadCloser
	length        int64 // of body
}

// file makes a request and turns an answer other than 200, 204 and 206 into an error.
func (c *Client) file(ctx context.Context, via *http.Client, call fileCall) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, call.method, baseURL+call.route+"?"+call.query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	if call.body != nil {
		req.Body, req.ContentLength = call.body, call.length
		if call.length == 0 {
			req.Body = http.NoBody
		}
	}
	for name, values := range call.head {
		req.Header[name] = values
	}
	headers(c.cfg).add(ctx, req.Header)
	res, err := via.Do(req)
	if err != nil {
		return nil, err
	}
	switch res.StatusCode {
	case http.StatusOK, http.StatusPartialContent, http.StatusNoContent:
		return res, nil
	}
	defer res.Body.Close()
	bodyCtx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	raw, err := readBounded(bodyCtx, func() { _ = res.Body.Close() }, res.Body, maxJSONBytes)
	if err != nil {
		return nil, err
	}
	return nil, refusal(res.StatusCode, raw)
}

// readBounded reads a small body within callTimeout; stop is how a read is ended.
func readBounded(ctx context.Context, stop func(), body io.Reader, limit int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, stop)()
	raw, err := io.ReadAll(io.LimitReader(body, limit+1))
	if err != nil {
		if ctx.Err() != nil {
			return nil, tooSlow(err)
		}
		return nil, err
	}
	if int64(len(raw)) > limit {
		return nil, faultf("an answer of more than %d bytes", limit)
	}
	return raw, nil
}

// refusal reads the error form of the raw routes.
func refusal(status int, raw []byte) error {
	var p struct{ Code, Message, Cause, Remedy string }
	if err := json.Unmarshal(raw, &p); err != nil {
		return faultf("status %d without the form of an error", status)
	}
	e := agentError(&problemv1.Problem{Code: p.Code, Message: p.Message, Cause: p.Cause, Remedy: p.Remedy})
	if e.Code.Info().Status != status && acceptedCode(e.Code) {
		return faultf("status %d with code %s", status, e.Code)
	}
	return e
}
