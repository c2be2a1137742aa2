package client

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"

	apiv1 "github.com/space-sandbox/space/api/v1"
)

// CreateCommand creates a command session; its process runs from the first attach, or at once with Start. It takes
// IdempotencyKey.
func (c *Client) CreateCommand(ctx context.Context, ref string, in apiv1.CreateCommand, opts ...Option) (*apiv1.CreatedCommand, error) {
	return do[apiv1.CreatedCommand](ctx, c, call{method: http.MethodPost, path: join("sandboxes", ref, "commands"), in: in}.with(opts))
}

// Exec runs a command to its end and returns its output, at most 1 MiB of each stream. A command that cannot be
// started is no error of this call: its State is failed. It takes IdempotencyKey.
func (c *Client) Exec(ctx context.Context, ref string, in apiv1.Exec, opts ...Option) (*apiv1.ExecResult, error) {
	return do[apiv1.ExecResult](ctx, c, call{method: http.MethodPost, path: join("sandboxes", ref, "exec"), in: in}.with(opts))
}

// Command returns a command session. It takes Wait.
func (c *Client) Command(ctx context.Context, id string, opts ...Option) (*apiv1.Command, error) {
	return do[apiv1.Command](ctx, c, call{method: http.MethodGet, path: join("commands", id)}.with(opts))
}

// CommandQuery selects command sessions.
type CommandQuery struct {
	Page
	Tag    string
	PID    int
	States []string
}

// ListCommands returns one part of the list of a sandbox's command sessions, newest first.
func (c *Client) ListCommands(ctx context.Context, ref string, query CommandQuery) (*apiv1.List[apiv1.Command], error) {
	q := query.values()
	setList(q, "state", query.States)
	if query.Tag != "" {
		q.Set("tag", query.Tag)
	}
	if query.PID != 0 {
		q.Set("pid", strconv.Itoa(query.PID))
	}
	return do[apiv1.List[apiv1.Command]](ctx, c, call{method: http.MethodGet, path: join("sandboxes", ref, "commands"), query: q})
}

// AttachToken returns where and with which token a command session can be attached on the data plane. Attach and
// Output ask for it themselves.
func (c *Client) AttachToken(ctx context.Context, id string) (*apiv1.Attach, error) {
	a, err := do[apiv1.Attached](ctx, c, call{method: http.MethodPost, path: join("commands", id, "attach")})
	if err != nil {
		return nil, err
	}
	return &a.Attach, nil
}

// Signal signals the process group of a running command; name is such as "SIGTERM".
func (c *Client) Signal(ctx context.Context, id, name string) (*apiv1.Command, error) {
	return do[apiv1.Command](ctx, c, call{method: http.MethodPost, path: join("commands", id, "signal"), in: apiv1.Signal{Signal: name}})
}

// Kill kills the process group of a command; one that has ended stays as it is.
func (c *Client) Kill(ctx context.Context, id string) (*apiv1.Command, error) {
	return do[apiv1.Command](ctx, c, call{method: http.MethodDelete, path: join("commands", id)})
}

// StdinOptions says how WriteStdin writes.
type StdinOptions struct {
	// Offset, when not nil, makes the call fail with stdin_offset_mismatch unless so many bytes were accepted before;
	// the error's StdinBytes says how many were.
	Offset *uint64
	// EOF ends standard input after the bytes.
	EOF bool
}

// WriteStdin appends r to the standard input of a command and returns how many bytes it has accepted in all.
func (c *Client) WriteStdin(ctx context.Context, id string, r io.Reader, opts StdinOptions) (uint64, error) {
	q := url.Values{}
	if opts.Offset != nil {
		q.Set("offset", strconv.FormatUint(*opts.Offset, 10))
	}
	if opts.EOF {
		q.Set("eof", "true")
	}
	w, err := do[apiv1.WrittenStdin](ctx, c, call{method: http.MethodPost, path: join("commands", id, "stdin"), query: q, body: r, size: -1})
	if err != nil {
		return 0, err
	}
	return w.StdinBytes, nil
}
