package httpapi

import (
	"maps"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/sandbox"
)

// maxWait bounds ?wait= and Prefer: wait=.
const maxWait = 300 * time.Second

// checkQuery refuses query parameters that the operation does not have, that come twice, or that are not text.
func checkQuery(op *huma.Operation, u *url.URL) error {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return invalid(sandbox.FieldError{Field: "query", Message: err.Error()})
	}
	known := map[string]bool{}
	for _, p := range op.Parameters {
		if p.In == "query" {
			known[p.Name] = true
		}
	}
	prefix, _ := op.Metadata[metaQueryPrefix].(string)
	var wrong []sandbox.FieldError
	for _, name := range slices.Sorted(maps.Keys(query)) {
		values := query[name]
		switch {
		case !known[name] && (prefix == "" || len(name) == len(prefix) || !strings.HasPrefix(name, prefix)):
			wrong = append(wrong, sandbox.FieldError{Field: name, Message: "unknown query parameter"})
		case len(values) > 1:
			wrong = append(wrong, sandbox.FieldError{Field: name, Message: "is given more than once"})
		case !utf8.ValidString(name + values[0]):
			wrong = append(wrong, sandbox.FieldError{Field: strings.ToValidUTF8(name, "?"), Message: "is not UTF-8"})
		}
	}
	if len(wrong) > 0 {
		e := invalid(wrong...)
		e.Remedy = "leave them out; /docs has the parameters of this route"
		return e
	}
	return nil
}

// WaitParams are the two ways to ask a call to wait; the query wins.
type WaitParams struct {
	Wait   string `query:"wait" doc:"Wait so long for the end: seconds (30, 2.5) or with a unit (30s); at most 300" example:"30s"`
	Prefer string `header:"Prefer" doc:"wait=30 is another way to say ?wait=30" example:"wait=30"`
}

// duration returns how long to wait, and whether waiting was asked for at all.
func (p WaitParams) duration() (d time.Duration, asked bool, err error) {
	text, field := p.Wait, "wait"
	if text == "" {
		text, field = preferredWait(p.Prefer), "Prefer"
	}
	if text == "" {
		return 0, false, nil
	}
	seconds, err := strconv.ParseFloat(strings.TrimSuffix(text, "s"), 64)
	if err != nil || math.IsNaN(seconds) || seconds < 0 || seconds > maxWait.Seconds() {
		return 0, false, invalid(sandbox.FieldError{Field: field, Message: "must be a number of seconds from 0 to 300, such as 30 or 30s"})
	}
	return time.Duration(seconds * float64(time.Second)), true, nil
}

// preferredWait finds wait=… in a Prefer header (RFC 7240); other preferences may be ignored.
func preferredWait(header string) string {
	for part := range strings.SplitSeq(header, ",") {
		part, _, _ = strings.Cut(part, ";")
		name, value, _ := strings.Cut(part, "=")
		if strings.EqualFold(strings.TrimSpace(name), "wait") {
			if value = strings.Trim(strings.TrimSpace(value), `"`); value == "" {
				return "empty" // fails as a number
			}
			return value
		}
	}
	return ""
}

// PageParams are the parameters of every list.
type PageParams struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"100" default:"50" doc:"How many items at most"`
	Cursor string `query:"cursor" maxLength:"512" doc:"next_cursor of the page before"`
	Order  string `query:"order" enum:"asc,desc" default:"desc" doc:"By time of creation"`
	Count  bool   `query:"count" doc:"Tell how many there are in all"`
}

func (p PageParams) request() control.PageRequest {
	return control.PageRequest{Limit: p.Limit, Cursor: p.Cursor, Ascending: p.Order == "asc", Count: p.Count}
}

// oneOf splits a comma-separated list and refuses what is not in allowed.
func oneOf[T ~string](field, text string, allowed ...T) ([]T, error) {
	if text == "" {
		return nil, nil
	}
	var out []T
	for part := range strings.SplitSeq(text, ",") {
		if !slices.Contains(allowed, T(part)) {
			return nil, invalid(sandbox.FieldError{Field: field, Message: "must be of " + joinStrings(allowed)})
		}
		out = append(out, T(part))
	}
	return out, nil
}

func joinStrings[T ~string](items []T) string {
	parts := make([]string, len(items))
	for i, v := range items {
		parts[i] = string(v)
	}
	return strings.Join(parts, ", ")
}
