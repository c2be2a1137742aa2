package client

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	apiv1 "github.com/space-sandbox/space/api/v1"
)

// OutputOptions selects what Output reads.
type OutputOptions struct {
	Stream string // stdout, stderr or pty; "" is stdout
	Offset uint64 // skip so many bytes
	End    bool   // begin at the current end; Offset does not count
	Follow bool   // start the process if need be, and go on until the session has ended and all is sent
}

// Output is the raw bytes of one stream of a command session. Close it.
type Output struct {
	io.ReadCloser
	// GapFrom and GapTo, when not equal, say that the bytes GapFrom <= n < GapTo were dropped before the first byte.
	GapFrom, GapTo uint64
}

// Output reads one stream of a command session from the data plane, over plain HTTP. token may be nil: then one is
// asked for. Reading to io.EOF means that everything asked for was sent; a connection that breaks is another error.
func (c *Client) Output(ctx context.Context, id string, token *apiv1.Attach, opts OutputOptions) (*Output, error) {
	if token == nil {
		var err error
		if token, err = c.AttachToken(ctx, id); err != nil {
			return nil, err
		}
	}
	base, err := dataPlane(token.URL)
	if err != nil {
		return nil, err
	}
	q := url.Values{"offset": {strconv.FormatUint(opts.Offset, 10)}}
	if opts.End {
		q.Set("offset", "end")
	}
	if opts.Stream != "" {
		q.Set("stream", opts.Stream)
	}
	if opts.Follow {
		q.Set("follow", "true")
	}
	at := &Client{BaseURL: base, Key: token.Token, HTTPClient: c.HTTPClient}
	resp, err := at.send(ctx, call{method: http.MethodGet, path: join("commands", id, "output"), query: q})
	if err != nil {
		return nil, err
	}
	out := &Output{ReadCloser: resp.Body}
	if gap := resp.Header.Get("Space-Stream-Gap"); gap != "" {
		if _, err := fmt.Sscanf(gap, "%d-%d", &out.GapFrom, &out.GapTo); err != nil {
			resp.Body.Close()
			return nil, fmt.Errorf("the server's Space-Stream-Gap %q makes no sense: %w", gap, err)
		}
	}
	return out, nil
}

// dataPlane is the base URL of the data plane, taken from where a session is attached.
func dataPlane(attach string) (string, error) {
	u, err := url.Parse(attach)
	if err != nil {
		return "", fmt.Errorf("the address of the data plane makes no sense: %w", err)
	}
	scheme, ok := strings.CutPrefix(u.Scheme, "ws")
	if !ok {
		return "", fmt.Errorf("the address of the data plane makes no sense: %q", attach)
	}
	return "http" + scheme + "://" + u.Host, nil
}
