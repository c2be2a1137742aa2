package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/space-sandbox/space/internal/problem"
	"github.com/space-sandbox/space/internal/sandbox"
)

// fail answers a request with err.
func (s *server) fail(w http.ResponseWriter, r *http.Request, err error) {
	s.report(r.Context(), r.Method+" "+r.URL.Path, err)
	p := problem.From(err, problem.Options{})
	if p.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="space"`)
	}
	drain(r)
	p.Write(w)
}

// report logs faults that are not the client's.
func (s *server) report(ctx context.Context, what string, err error) {
	e := sandbox.AsError(err)
	if e.Code.Info().Status != http.StatusInternalServerError {
		return
	}
	level := slog.LevelError
	if ctx.Err() != nil {
		level = slog.LevelDebug // the client has gone; what failed is most likely that
	}
	s.Logger.LogAttrs(ctx, level, "request failed", slog.String("request", what), slog.String("error", err.Error()))
}

// refusal makes err the answer of a huma handler.
func (s *server) refusal(ctx context.Context, what string, err error, opts problem.Options) error {
	s.report(ctx, what, err)
	p := problem.From(err, opts)
	if retry := p.RetryAfter(); retry != "" {
		return huma.ErrorWithHeaders(p, http.Header{"Retry-After": {retry}})
	}
	return p
}

// contractStatus is the status of the contract for one of huma's: it says 422 for what API v1 calls 400.
func contractStatus(status int) int {
	switch status {
	case http.StatusUnprocessableEntity, http.StatusUnsupportedMediaType, http.StatusNotAcceptable:
		return http.StatusBadRequest
	}
	return status
}

// toProblem is huma's transformer of answers: its own error model becomes the error form.
func toProblem(_ huma.Context, _ string, v any) (any, error) {
	m, ok := v.(*huma.ErrorModel)
	if !ok {
		return v, nil
	}
	if m.Status >= http.StatusInternalServerError {
		return problem.From(errors.New(m.Detail), problem.Options{}), nil
	}
	var fields []sandbox.FieldError
	for _, d := range m.Errors {
		fields = append(fields, sandbox.FieldError{Field: fieldOf(d.Location), Message: plainNumbers(d.Message)})
	}
	return problem.From(invalid(fields...), problem.Options{}), nil
}

var exponent = regexp.MustCompile(`[0-9]+(\.[0-9]+)?e\+[0-9]+`)

// plainNumbers writes the bounds in huma's messages as people do: 1048576 instead of 1.048576e+06.
func plainNumbers(message string) string {
	return exponent.ReplaceAllStringFunc(message, func(s string) string {
		f, err := strconv.ParseFloat(s, 64)
		if err != nil {
			return s
		}
		return strconv.FormatFloat(f, 'f', -1, 64)
	})
}

// fieldOf turns huma's location into the field's name as the client wrote it: body.argv[0] is argv[0].
func fieldOf(location string) string {
	where, rest, ok := strings.Cut(location, ".")
	switch {
	case !ok:
		return location
	case where == "body", where == "query", where == "path", where == "header":
		return rest
	}
	return location
}

// invalid is the error for fields or parameters with values that are not allowed.
func invalid(fields ...sandbox.FieldError) *sandbox.Error {
	e := &sandbox.Error{Code: sandbox.CodeInvalidArgument, Message: "the request is not valid",
		Remedy: "correct the fields; /docs has their types and bounds", Fields: fields}
	parts := make([]string, 0, len(fields))
	for _, f := range fields {
		parts = append(parts, f.Field+": "+f.Message)
	}
	e.Cause = strings.Join(parts, "; ")
	return e
}
