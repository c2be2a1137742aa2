package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"time"

	apiv1 "github.com/space-sandbox/space/api/v1"
)

// maxProblem bounds an error body.
const maxProblem = 64 << 10

// maxRetryAfter bounds what a server may ask to wait, in seconds.
const maxRetryAfter = 3600

// Error is an answer that is not 2xx. When the server answered in the error form, all fields of the Problem are set;
// when something else answered (a proxy, another program), only Status and Message are.
type Error struct {
	apiv1.Problem

	// RetryAfter is how long the server asks to wait before the same call is made again; 0 when it did not say.
	RetryAfter time.Duration
}

// Error is the message with its cause.
func (e *Error) Error() string {
	if e.Cause == "" {
		return e.Message
	}
	return e.Message + " (" + e.Cause + ")"
}

// Code returns the code of an *Error in err's chain, "" when there is none. The codes are listed in docs/errors.md.
func Code(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return ""
}

// IsNotFound reports whether the server said that the thing does not exist.
func IsNotFound(err error) bool { return Code(err) == "not_found" }

// IsRetryable reports whether the server said that the same call may succeed later.
func IsRetryable(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Retryable
}

// readError makes an Error of an answer.
func readError(resp *http.Response) error {
	e := &Error{Problem: apiv1.Problem{Status: resp.StatusCode, Message: "unexpected answer: HTTP status " + resp.Status}}
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && seconds > 0 {
		e.RetryAfter = time.Duration(min(seconds, maxRetryAfter)) * time.Second
	}
	media, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil || media != "application/problem+json" {
		return e
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxProblem))
	if err != nil {
		return fmt.Errorf("read the error of HTTP status %s: %w", resp.Status, err)
	}
	var p apiv1.Problem
	if json.Unmarshal(data, &p) == nil && p.Code != "" {
		e.Problem = p
	}
	return e
}
