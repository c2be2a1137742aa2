package httpapi

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/space-sandbox/space/internal/sandbox"
)

const (
	maxBodyBytes = 1 << 20
	// bodyTimeout is how long the body of a JSON call may take in all.
	bodyTimeout = 30 * time.Second

	maxDrainBytes = 16 << 20
	drainTimeout  = 5 * time.Second
)

// readJSON reads and checks the body of a typed call. It returns nil when there is none and none is needed.
func (s *server) readJSON(op *huma.Operation, r *http.Request) ([]byte, error) {
	limitBody(r, bodyTimeout)
	if r.ContentLength > maxBodyBytes {
		return nil, bodyTooLarge()
	}
	data, err := io.ReadAll(io.LimitReader(r.Body, maxBodyBytes+1))
	if err != nil {
		return nil, bodyError(err)
	}
	if len(data) > maxBodyBytes {
		return nil, bodyTooLarge()
	}
	var schema *huma.Schema
	if op.RequestBody != nil {
		schema = op.RequestBody.Content["application/json"].Schema
	}
	if len(data) == 0 {
		if schema != nil {
			return nil, &sandbox.Error{Code: sandbox.CodeMalformedBody, Message: "the request has no body",
				Remedy: "send a JSON object; /docs has its fields"}
		}
		return nil, nil
	}
	if err := checkJSON(data, schema, s.api.OpenAPI().Components.Schemas); err != nil {
		return nil, err
	}
	return data, nil
}

func bodyError(err error) error {
	cause := "the connection ended before the body did"
	if errors.Is(err, os.ErrDeadlineExceeded) {
		cause = "the body did not arrive within " + bodyTimeout.String()
	}
	return &sandbox.Error{Code: sandbox.CodeMalformedBody, Message: "the body could not be read", Cause: cause,
		Remedy: "send the request again", Err: err}
}

func bodyTooLarge() error {
	return &sandbox.Error{Code: sandbox.CodeBodyTooLarge, Message: "the body is too large",
		Cause: "a JSON body may have at most 1 MiB", Remedy: "send large data as a file (PUT …/files?path=) or to stdin"}
}

// limitBody bounds how long the rest of a body may take. It reports false when the time for it is already over.
func limitBody(r *http.Request, timeout time.Duration) bool {
	tb, ok := r.Body.(*timedBody)
	if !ok {
		return true
	}
	now := time.Now()
	if !tb.until.IsZero() && !now.Before(tb.until) {
		return false
	}
	tb.until = now.Add(timeout)
	return true
}

// drain reads what a client is still sending, within bounds, before it is refused: a client that writes while its
// connection is being closed may see a reset instead of our answer.
func drain(r *http.Request) {
	if r.Body == nil || strings.EqualFold(r.Header.Get("Expect"), "100-continue") {
		return // nothing is under way; a client that asks first has not begun
	}
	if limitBody(r, drainTimeout) {
		_, _ = io.CopyN(io.Discard, r.Body, maxDrainBytes)
	}
}
