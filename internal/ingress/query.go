package ingress

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/space-sandbox/space/internal/sandbox"
)

// params are the query parameters of a request, each given once. Their values may be secret: errors only name them.
type params map[string]string

// parseQuery reads a raw query in which only the allowed names may occur, once each.
func parseQuery(raw string, allowed ...string) (params, error) {
	values, err := url.ParseQuery(raw)
	if err != nil { // the error repeats a part of the query: not for us
		return nil, sandbox.Errorf(sandbox.CodeInvalidArgument, "the query string is malformed")
	}
	var fields []sandbox.FieldError
	p := params{}
	for name, v := range values {
		switch {
		case !slices.Contains(allowed, name):
			fields = append(fields, sandbox.FieldError{Field: printable(name), Message: "unknown parameter"})
		case len(v) != 1:
			fields = append(fields, sandbox.FieldError{Field: name, Message: "given more than once"})
		default:
			p[name] = v[0]
		}
	}
	if len(fields) > 0 {
		slices.SortFunc(fields, func(a, b sandbox.FieldError) int { return strings.Compare(a.Field, b.Field) })
		fields = fields[:min(len(fields), 16)]
		return nil, &sandbox.Error{Code: sandbox.CodeInvalidArgument, Message: "the query has parameters that are not allowed",
			Cause: fields[0].Field + ": " + fields[0].Message, Fields: fields}
	}
	return p, nil
}

// printable bounds what a client's own text adds to an answer.
func printable(s string) string {
	if q := strconv.Quote(s); q != `"`+s+`"` || len(s) > 64 {
		return q[:min(len(q), 64)]
	}
	return s
}

// position is where a stream is to be read from.
type position struct {
	offset uint64
	end    bool // the current end; offset is ignored
}

// position reads a parameter that is a byte offset or "end"; absent means 0.
func (p params) position(name string) (position, error) {
	text, ok := p[name]
	switch {
	case !ok:
		return position{}, nil
	case text == "end":
		return position{end: true}, nil
	}
	n, err := parseOffset(text)
	if err != nil {
		return position{}, paramError(name, `must be a number of bytes or "end"`)
	}
	return position{offset: n}, nil
}

// parseOffset accepts decimal digits only, up to what a signed 64-bit number holds.
func parseOffset(text string) (uint64, error) {
	for _, c := range []byte(text) {
		if c < '0' || c > '9' {
			return 0, fmt.Errorf("%q is not a digit", c)
		}
	}
	return strconv.ParseUint(text, 10, 63)
}

// flag reads a parameter that is true or false; absent means false.
func (p params) flag(name string) (bool, error) {
	switch p[name] {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	if _, given := p[name]; given {
		return false, paramError(name, "must be true or false")
	}
	return false, nil
}

func paramError(name, message string) *sandbox.Error {
	return &sandbox.Error{Code: sandbox.CodeInvalidArgument, Message: "a query parameter is not valid",
		Cause: name + " " + message, Fields: []sandbox.FieldError{{Field: name, Message: message}}}
}
