package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	apiv1 "github.com/space-sandbox/space/api/v1"
)

// eventSilence is how long a stream of events may be silent before its connection counts as dead: the server says
// something every 15 seconds.
const eventSilence = time.Minute

// EventQuery says which events to follow. The zero value: all, from now on.
type EventQuery struct {
	Sandbox string   // only what concerns this one (id, or name of a live one)
	Types   []string // only these: operation, sandbox, lease, command, template
	// Since goes on after this event; 0: from the oldest that is kept; nil: from now on.
	Since *int64
}

// EventsMissed is returned by EventStream.Next when events are missing: those before Oldest are not kept any more. What
// follows is returned by the next calls; look at what interests you anew.
type EventsMissed struct{ Oldest int64 }

func (e *EventsMissed) Error() string {
	return fmt.Sprintf("events before %d are missing: they are not kept any more", e.Oldest)
}

// EventStream follows events over broken connections and restarts of the server: each comes once, in order. It is not
// safe for concurrent use.
type EventStream struct {
	c      *Client
	ctx    context.Context
	query  url.Values
	last   *int64 // to go on after; nil before anything is known
	body   io.Closer
	lines  *bufio.Scanner
	since  time.Time // when it was connected
	silent *time.Timer
	retry  backoff
}

// Events follows events until ctx ends. When it returns, what changes from then on is seen. Close the stream.
func (c *Client) Events(ctx context.Context, query EventQuery) (*EventStream, error) {
	q := url.Values{}
	if query.Sandbox != "" {
		q.Set("sandbox_id", query.Sandbox)
	}
	if len(query.Types) > 0 {
		q.Set("type", strings.Join(query.Types, ","))
	}
	s := &EventStream{c: c, ctx: ctx, query: q, last: query.Since, retry: backoff{limit: patience}}
	if err := s.connect(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *EventStream) connect() error {
	head := http.Header{}
	if s.last != nil {
		head.Set("Last-Event-Id", strconv.FormatInt(*s.last, 10))
	}
	resp, err := s.c.send(s.ctx, call{method: http.MethodGet, path: join("events"), query: s.query, header: head})
	if err != nil {
		return err
	}
	s.body, s.lines = resp.Body, bufio.NewScanner(resp.Body)
	s.lines.Buffer(nil, maxEventLine)
	s.since = time.Now()
	s.silent = time.AfterFunc(eventSilence, func() { resp.Body.Close() })
	if s.last == nil { // where the present is, so that a connection that breaks before the first event loses nothing
		_, _, err = s.read()
	}
	return err
}

// LastID is the number of the last event that Next returned, or of the place in the log where the stream is; -1 when it
// is not known yet.
func (s *EventStream) LastID() int64 {
	if s.last == nil {
		return -1
	}
	return *s.last
}

// Next waits for the next event. After an *EventsMissed it can be called again; other errors are final: ctx has ended,
// the server refuses, or it was away for more than a minute.
func (s *EventStream) Next() (apiv1.Event, error) {
	for {
		kind, data, err := "", "", error(nil)
		if s.body == nil {
			err = s.connect()
		}
		if err == nil {
			kind, data, err = s.read()
		}
		switch {
		case err == nil && data == "": // a sign of life
			if time.Since(s.since) > maxPause { // the first one says only that somebody answered
				s.retry.reset()
			}
		case err == nil:
			s.retry.reset()
			return event(kind, data)
		case s.ctx.Err() != nil:
			return apiv1.Event{}, s.ctx.Err()
		case s.body == nil && !isPassing(err) || !s.retry.pause(s.ctx):
			return apiv1.Event{}, err
		default:
			s.Close()
		}
	}
}

func event(kind, data string) (e apiv1.Event, err error) {
	if kind == "gap" {
		var gap apiv1.EventGap
		if err = json.Unmarshal([]byte(data), &gap); err == nil {
			return e, &EventsMissed{Oldest: gap.Oldest}
		}
	} else {
		err = json.Unmarshal([]byte(data), &e)
	}
	if err != nil {
		err = fmt.Errorf("the event is not what API v1 says: %w", err)
	}
	return e, err
}

// read returns the next event; one without data only moves the place in the log on.
func (s *EventStream) read() (kind, data string, err error) {
	id := ""
	for s.lines.Scan() {
		s.silent.Reset(eventSilence)
		line := s.lines.Text()
		if line == "" && (id != "" || data != "") {
			n, err := strconv.ParseInt(id, 10, 64)
			if err != nil {
				return "", "", errors.New("the event has no number")
			}
			s.last = &n
			return kind, data, nil
		}
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch name {
		case "id":
			id = value
		case "event":
			kind = value
		case "data":
			data = value
		}
	}
	if err := s.lines.Err(); err != nil {
		return "", "", fmt.Errorf("the stream of events broke: %w", err)
	}
	return "", "", io.ErrUnexpectedEOF // it has no end of its own
}

// Close ends the stream.
func (s *EventStream) Close() {
	if s.body != nil {
		s.silent.Stop()
		_ = s.body.Close() // nothing of it is wanted any more
		s.body = nil
	}
}
