package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// Resize changes the size of a command's terminal.
func (c *Client) Resize(ctx context.Context, id string, size apiv1.PTY) (*apiv1.Command, error) {
	return do[apiv1.Command](ctx, c, call{method: http.MethodPost, path: join("commands", id, "resize"), in: size})
}

// Kill kills the process group of a command. One that was not started fails as canceled; one that has ended stays as it
// is.
func (c *Client) Kill(ctx context.Context, id string) (*apiv1.Command, error) {
	return do[apiv1.Command](ctx, c, call{method: http.MethodDelete, path: join("commands", id)})
}

// Transcript is what is kept of a recorded session. Close it.
type Transcript struct {
	body io.Closer
	dec  *json.Decoder
}

// Transcript reads what is kept of a session that was created with Record; also when its sandbox is gone.
func (c *Client) Transcript(ctx context.Context, id string) (*Transcript, error) {
	resp, err := c.send(ctx, call{method: http.MethodGet, path: join("commands", id, "transcript")}) //nolint:bodyclose // Close closes it
	if err != nil {
		return nil, err
	}
	return &Transcript{body: resp.Body, dec: json.NewDecoder(resp.Body)}, nil
}

// Next returns the next entry; io.EOF after the last.
func (t *Transcript) Next() (apiv1.TranscriptEntry, error) {
	var e apiv1.TranscriptEntry
	if err := t.dec.Decode(&e); err != nil {
		if errors.Is(err, io.EOF) {
			return e, io.EOF
		}
		return e, fmt.Errorf("read the transcript: %w", err)
	}
	return e, nil
}

// Close ends it.
func (t *Transcript) Close() error { return t.body.Close() }

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
