package httpapi

import (
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/space-sandbox/space/internal/sandbox"
)

const (
	maxBodyBytes = 1 << 20
	// bodyTimeout is how long the body of a JSON call may take in all.
	bodyTimeout = 30 * time.Second
)

// readJSON reads and checks the body of a typed call. It returns nil when there is none and none is needed.
func (s *server) readJSON(op *huma.Operation, w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if tb, ok := r.Body.(*timedBody); ok {
		tb.until = time.Now().Add(bodyTimeout)
	}
	if r.ContentLength > maxBodyBytes {
		w.Header().Set("Connection", "close")
		return nil, bodyTooLarge()
	}
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBodyBytes))
	if err != nil {
		return nil, bodyError(err)
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
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return bodyTooLarge()
	}
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
