// Package problem is the JSON form in which every error leaves SPACE over HTTP (application/problem+json).
package problem

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

// ContentType is the media type of every error body.
const ContentType = "application/problem+json"

// Problem is one error as clients see it: the wire form of apiv1 and how long to wait before trying again. It satisfies
// huma's StatusError and ContentTypeFilter.
type Problem struct {
	apiv1.Problem

	retryAfter time.Duration
}

// Options adds what the error itself does not know. Its zero value is fine.
type Options struct {
	OperationID string
	SandboxID   string
	// RetryAfter is what 429 and 503 answers tell clients to wait; 0 means what the error says, or one second. It is
	// rounded up to seconds.
	RetryAfter time.Duration
}

// From puts err into the form. An error without a *sandbox.Error in its chain becomes an internal one whose details
// stay in the log: only Message, Cause, Remedy and Fields are ever shown.
func From(err error, opts Options) *Problem {
	e := sandbox.AsError(err)
	info := e.Code.Info()
	p := &Problem{retryAfter: cmp.Or(opts.RetryAfter, e.RetryAfter), Problem: apiv1.Problem{Status: info.Status, Code: string(info.Code),
		Message: e.Message, Cause: e.Cause, Remedy: cmp.Or(e.Remedy, info.Remedy), Retryable: info.Retryable,
		OperationID: cmp.Or(opts.OperationID, string(e.OperationID)), SandboxID: cmp.Or(opts.SandboxID, string(e.SandboxID))}}
	for _, f := range e.Fields {
		p.Fields = append(p.Fields, apiv1.FieldError(f))
	}
	return p
}

// Write answers the request with err. It must come before anything else has been written.
func Write(w http.ResponseWriter, err error, opts Options) { From(err, opts).Write(w) }

// Write answers a request with p.
func (p *Problem) Write(w http.ResponseWriter) {
	h := w.Header()
	h.Del("Content-Length")
	h.Set("Content-Type", ContentType)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	if v := p.RetryAfter(); v != "" {
		h.Set("Retry-After", v)
	}
	w.WriteHeader(p.Status)
	body, err := json.Marshal(p)
	if err != nil { // strings, ints and bools always marshal
		panic(fmt.Sprintf("marshal a problem: %v", err))
	}
	// A client that has gone away is no fault to report.
	_, _ = w.Write(append(body, '\n'))
}

// RetryAfter is the value of the Retry-After header: set for 429 and 503, which mean that nothing happened.
func (p *Problem) RetryAfter() string {
	if p.Status != http.StatusTooManyRequests && p.Status != http.StatusServiceUnavailable {
		return ""
	}
	return strconv.Itoa(max(1, int(math.Ceil(p.retryAfter.Seconds()))))
}

// Error makes a Problem an error for frameworks that pass it through as one.
func (p *Problem) Error() string { return p.Message }

// GetStatus returns the HTTP status.
func (p *Problem) GetStatus() int { return p.Status }

// ContentType replaces a framework's choice of media type.
func (p *Problem) ContentType(string) string { return ContentType }
