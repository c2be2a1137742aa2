package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"sync"
	"time"

	problemv1 "github.com/space-sandbox/space/api/proto/problem/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

const (
	maxJSONBytes = 64 << 10
	maxPath      = 8192 // a relative path below a home directory
)

// File is the content of a file on its way out of a guest.
type File struct {
	// Size is how many bytes Body gives, -1 when that is known only at its end (the kernel's own files).
	Size int64
	// Body gives exactly Size bytes or an error. Close it.
	Body io.ReadCloser
}

// Stored is what the agent says about a file it has stored.
type Stored struct {
	Path      string
	SizeBytes int64
	SHA256    string // 64 hex digits
}

// GetFile opens a file of the guest. The query goes to the agent unread: path, user.
func (c *Client) GetFile(ctx context.Context, query url.Values) (*File, error) {
	callCtx, cancel := context.WithCancel(ctx)
	timer := time.AfterFunc(callTimeout, cancel)
	res, err := c.file(callCtx, http.MethodGet, query, nil, 0)
	if !timer.Stop() && ctx.Err() == nil {
		if err == nil {
			_ = res.Body.Close() // it is cut off already
		}
		cancel()
		return nil, tooSlow(errors.New("no answer to a file request"))
	}
	if err != nil {
		cancel()
		return nil, callError(ctx, err)
	}
	if res.ContentLength < -1 {
		cancel()
		return nil, errors.Join(faultf("a file of %d bytes", res.ContentLength), res.Body.Close())
	}
	return &File{Size: res.ContentLength, Body: &fileBody{ReadCloser: res.Body, ctx: ctx, cancel: cancel}}, nil
}

// fileBody is the body of a File.
type fileBody struct {
	io.ReadCloser
	ctx    context.Context
	cancel context.CancelFunc
}

func (b *fileBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == nil || errors.Is(err, io.EOF) {
		return n, err
	}
	return n, callError(b.ctx, err)
}

func (b *fileBody) Close() error {
	b.cancel()
	return b.ReadCloser.Close()
}

// PutFile stores body as a file of the guest. The query goes to the agent unread: path, user, mode, create_parents.
// length is the number of bytes of body, -1 when unknown. A body that fails (CodeInvalidArgument) leaves no half file.
// When the agent refuses early, body may still be read a moment after PutFile has returned; the bodies of a server's
// requests are safe for that.
func (c *Client) PutFile(ctx context.Context, query url.Values, body io.Reader, length int64) (Stored, error) {
	callCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	src := &sentBody{r: body}
	res, err := c.file(callCtx, http.MethodPut, query, src, length)
	if cause := src.failure(); err != nil && cause != nil {
		return Stored{}, &sandbox.Error{Code: sandbox.CodeInvalidArgument, Message: "the body was cut off",
			Cause: cause.Error(), Remedy: "send it again", Err: cause}
	}
	if err != nil {
		return Stored{}, callError(ctx, err)
	}
	defer res.Body.Close()
	raw, err := readBounded(callCtx, cancel, res.Body)
	if err != nil {
		return Stored{}, callError(ctx, err)
	}
	return checkStored(raw, length)
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

// file makes a request and turns an answer other than 200 into an error.
func (c *Client) file(ctx context.Context, method string, query url.Values, body io.ReadCloser, length int64) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, baseURL+"/files?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Body, req.ContentLength = body, length
		if length == 0 {
			req.Body = http.NoBody
		}
	}
	req.Header.Set("Authorization", "Bearer "+c.cfg.Token)
	res, err := c.files.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode == http.StatusOK {
		return res, nil
	}
	defer res.Body.Close()
	bodyCtx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	raw, err := readBounded(bodyCtx, func() { _ = res.Body.Close() }, res.Body)
	if err != nil {
		return nil, err
	}
	return nil, refusal(res.StatusCode, raw)
}

// readBounded reads a small body within callTimeout; stop is how a read is ended.
func readBounded(ctx context.Context, stop func(), body io.Reader) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, stop)()
	raw, err := io.ReadAll(io.LimitReader(body, maxJSONBytes+1))
	if err != nil {
		if ctx.Err() != nil {
			return nil, tooSlow(err)
		}
		return nil, err
	}
	if len(raw) > maxJSONBytes {
		return nil, faultf("an answer of more than %d bytes", maxJSONBytes)
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

var sumPattern = regexp.MustCompile(`^[0-9a-f]{64}$`)

// checkStored checks the answer to a PUT of length bytes.
func checkStored(raw []byte, length int64) (Stored, error) {
	var s struct {
		Path      string `json:"path"`
		SizeBytes int64  `json:"size_bytes"`
		SHA256    string `json:"sha256"`
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	if err := dec.Decode(&s); err != nil {
		return Stored{}, faultf("an answer that is not JSON")
	}
	if s.SizeBytes < 0 || length >= 0 && s.SizeBytes != length || !sumPattern.MatchString(s.SHA256) || !path.IsAbs(s.Path) {
		return Stored{}, faultf("stored %d of %d bytes, sum %.80q", s.SizeBytes, length, s.SHA256)
	}
	return Stored{Path: cleanTo(s.Path, maxPath), SizeBytes: s.SizeBytes, SHA256: s.SHA256}, nil
}
