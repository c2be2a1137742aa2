// Package client is the Go SDK of API v1.
//
// A Client has one method for each route; the objects are those of package apiv1. Errors that the server answered are
// of type *Error and carry its code, cause and remedy. Calls that wait (options Wait, WaitOperation, WaitCommand) block
// until ctx ends at the latest.
//
// Attach follows a running command over a WebSocket and goes on from where it was when the connection breaks.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"strings"
)

// DefaultURL is where SPACE listens when nobody says otherwise.
const DefaultURL = "http://127.0.0.1:7070"

// maxAnswer bounds a JSON answer. The largest is an exec with 1 MiB on each stream, each byte escaped to six.
const maxAnswer = 32 << 20

// Client calls API v1. It may be used by several goroutines at once; its fields must not change then.
type Client struct {
	// BaseURL is the server, such as DefaultURL.
	BaseURL string
	// Key is the API key, or a token for one sandbox (CreateToken).
	Key string
	// HTTPClient makes the calls; nil is one without limits but those of the contexts. It must not have a Timeout shorter than the waits.
	HTTPClient *http.Client
}

// New returns a Client for the server at baseURL. The key may be a token for one sandbox.
func New(baseURL, key string) *Client { return &Client{BaseURL: baseURL, Key: key} }

func (c *Client) http() *http.Client {
	if c.HTTPClient != nil {
		return c.HTTPClient
	}
	return &http.Client{}
}

// call is one request to the API.
type call struct {
	method string
	path   string // escaped
	query  url.Values
	header http.Header
	in     any       // sent as JSON unless nil
	body   io.Reader // sent as it is, when in is nil
	size   int64     // of body; -1 when unknown
}

// send makes the request. An answer that is not 2xx is an error; else the caller closes the body.
func (c *Client) send(ctx context.Context, cl call) (*http.Response, error) {
	req, err := c.request(ctx, cl)
	if err != nil {
		return nil, err
	}
	resp, err := c.http().Do(req)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", cl.method, cl.path, err)
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		defer resp.Body.Close()
		return nil, readError(resp)
	}
	return resp, nil
}

func (c *Client) request(ctx context.Context, cl call) (*http.Request, error) {
	body := cl.body
	if cl.in != nil {
		if err := checkText(reflect.ValueOf(cl.in), ""); err != nil {
			return nil, err
		}
		data, err := json.Marshal(cl.in)
		if err != nil {
			return nil, fmt.Errorf("encode the body: %w", err)
		}
		body = bytes.NewReader(data)
	}
	target := strings.TrimSuffix(c.BaseURL, "/") + cl.path
	if len(cl.query) > 0 {
		target += "?" + cl.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, cl.method, target, body)
	if err != nil {
		return nil, fmt.Errorf("make a request: %w", err)
	}
	for name, values := range cl.header {
		req.Header[name] = values
	}
	if c.Key != "" {
		req.Header.Set("Authorization", "Bearer "+c.Key)
	}
	switch {
	case cl.in != nil:
		req.Header.Set("Content-Type", "application/json")
	case body != nil:
		if req.Header.Get("Content-Type") == "" {
			req.Header.Set("Content-Type", "application/octet-stream")
		}
		req.ContentLength = cl.size
	}
	return req, nil
}

// do makes a call whose answer is JSON of type T.
func do[T any](ctx context.Context, c *Client, cl call) (*T, error) {
	resp, err := c.send(ctx, cl)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return decode[T](resp)
}

func decode[T any](resp *http.Response) (*T, error) {
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	if len(data) > maxAnswer {
		return nil, errors.New("the answer is too large")
	}
	v := new(T)
	if err := json.Unmarshal(data, v); err != nil {
		return nil, fmt.Errorf("the answer is not what API v1 says: %w", err)
	}
	return v, nil
}

// join makes an escaped path of segments.
func join(segments ...string) string {
	var b strings.Builder
	b.WriteString("/v1")
	for _, s := range segments {
		b.WriteString("/" + url.PathEscape(s))
	}
	return b.String()
}
