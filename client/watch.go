package client

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	apiv1 "github.com/space-sandbox/space/api/v1"
)

// maxEventLine bounds one line of a stream of events.
const maxEventLine = 256 << 10

// WatchOptions says what WatchFiles watches.
type WatchOptions struct {
	User      string // in the guest; empty: the template's
	Recursive bool   // the directories below too
	// LastEventID is the ID of the last event of a watch that broke. The new one begins with an overflow event then, since
	// nothing is kept meanwhile.
	LastEventID string
}

// FileWatch is a stream of what changes below a path. It is not safe for concurrent use, but Close may be called at any
// time.
type FileWatch struct {
	body  io.Closer
	lines *bufio.Scanner
	// ID is that of the event Next returned last.
	ID string
}

// WatchFiles watches a directory or file. When it returns, the watch is set: what changes from then on is seen. Close it.
func (c *Client) WatchFiles(ctx context.Context, ref, path string, opts WatchOptions) (*FileWatch, error) {
	q := fileQuery(path, opts.User)
	setFlag(q, "recursive", opts.Recursive)
	head := http.Header{}
	if opts.LastEventID != "" {
		head.Set("Last-Event-ID", opts.LastEventID)
	}
	resp, err := c.send(ctx, call{method: http.MethodGet, path: filesPath(ref, "watch"), query: q, header: head}) //nolint:bodyclose // Close does
	if err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxEventLine)
	return &FileWatch{body: resp.Body, lines: lines}, nil
}

// Next waits for the next event. io.EOF means that what was watched is gone; a connection that breaks is another error.
// After an overflow event others were lost: look at the directory anew.
func (w *FileWatch) Next() (apiv1.FileEvent, error) {
	var e apiv1.FileEvent
	data, id := "", ""
	for w.lines.Scan() {
		line := w.lines.Text()
		if line == "" && data != "" { // the end of an event
			if err := json.Unmarshal([]byte(data), &e); err != nil {
				return e, fmt.Errorf("the event is not what API v1 says: %w", err)
			}
			w.ID = id
			return e, nil
		}
		switch name, value, _ := strings.Cut(line, ":"); name {
		case "id":
			id = strings.TrimPrefix(value, " ")
		case "data":
			data = strings.TrimPrefix(value, " ")
		}
	}
	if err := w.lines.Err(); err != nil {
		return e, fmt.Errorf("the watch broke: %w", err)
	}
	return e, io.EOF
}

// Close ends the watch.
func (w *FileWatch) Close() error { return w.body.Close() }
