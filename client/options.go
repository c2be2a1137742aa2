package client

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Option changes one call.
type Option func(*call)

func (cl call) with(opts []Option) call {
	if cl.query == nil {
		cl.query = url.Values{}
	}
	if cl.header == nil {
		cl.header = http.Header{}
	}
	for _, o := range opts {
		o(&cl)
	}
	return cl
}

// Wait makes the server wait for the end of the operation or command, at most 5 minutes. A wait that runs out is no
// error: the answer shows how far it is.
func Wait(d time.Duration) Option {
	return func(cl *call) { cl.query.Set("wait", strconv.FormatFloat(d.Seconds(), 'f', -1, 64)) }
}

// IdempotencyKey names the call (at most 128 characters): sent again with the same content within 24 hours it answers
// the same operation or session instead of doing it twice.
func IdempotencyKey(key string) Option {
	return func(cl *call) { cl.header.Set("Idempotency-Key", key) }
}

// IfBusyFail makes a lifecycle call fail with sandbox_busy instead of queueing behind a transition.
func IfBusyFail() Option { return func(cl *call) { cl.query.Set("if_busy", "fail") } }

// IfState makes a lifecycle call fail with state_mismatch unless the sandbox is in this state when the call runs.
func IfState(state string) Option { return func(cl *call) { cl.query.Set("if_state", state) } }

// Page selects a part of a list. The zero value is its first part.
type Page struct {
	Limit     int    // 1 to 100; 0: the server's default
	Cursor    string // NextCursor of the part before
	Ascending bool   // oldest first
	Count     bool   // ask for the total
}

func (p Page) values() url.Values {
	q := url.Values{}
	if p.Limit != 0 {
		q.Set("limit", strconv.Itoa(p.Limit))
	}
	if p.Cursor != "" {
		q.Set("cursor", p.Cursor)
	}
	if p.Ascending {
		q.Set("order", "asc")
	}
	if p.Count {
		q.Set("count", "true")
	}
	return q
}

func setList(q url.Values, name string, values []string) {
	if len(values) > 0 {
		q.Set(name, strings.Join(values, ","))
	}
}
