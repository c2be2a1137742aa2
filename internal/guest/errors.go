package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"unicode"

	"connectrpc.com/connect"

	problemv1 "github.com/space-sandbox/space/api/proto/problem/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

// Longest texts taken over from a guest, in bytes.
const (
	maxText   = 1024
	maxFields = 8
)

// faultf says that the guest answered nonsense.
func faultf(format string, args ...any) *sandbox.Error {
	return &sandbox.Error{Code: sandbox.CodeGuestFault, Message: "the sandbox's agent answered something that makes no sense",
		Cause: cleanText(fmt.Sprintf(format, args...)), Remedy: "the sandbox may have been damaged from inside: make a new one"}
}

// acceptedCode reports whether an agent may speak of a code; any other is a fault.
func acceptedCode(code sandbox.Code) bool {
	switch code {
	case sandbox.CodeInvalidArgument, sandbox.CodeUnknownField, sandbox.CodeNotFound, sandbox.CodeInvalidState,
		sandbox.CodeIdempotencyConflict, sandbox.CodeIsDirectory, sandbox.CodeNotDirectory,
		sandbox.CodeAlreadyExists, sandbox.CodeNotEmpty, sandbox.CodeContentMismatch, sandbox.CodeRange, sandbox.CodePermissionDenied, sandbox.CodeStdinOffset,
		sandbox.CodeStdinClosed, sandbox.CodeNotRunning, sandbox.CodeGuestDiskFull, sandbox.CodeCapacity,
		sandbox.CodeUnavailable, sandbox.CodeCanceled, sandbox.CodeDeadline:
		return true
	}
	return false
}

// agentError makes an error of the house from what an agent said was one.
func agentError(p *problemv1.Problem) *sandbox.Error {
	code := sandbox.Code(p.GetCode())
	if !acceptedCode(code) {
		return faultf("error %.60q: %.300q", p.GetCode(), p.GetMessage())
	}
	e := &sandbox.Error{Code: code, Message: cleanText(p.Message), Cause: cleanText(p.Cause), Remedy: cleanText(p.Remedy)}
	if e.Message == "" {
		e.Message = code.Info().Meaning
	}
	for _, f := range p.Fields[:min(len(p.Fields), maxFields)] {
		e.Fields = append(e.Fields, sandbox.FieldError{Field: cleanText(f.GetField()), Message: cleanText(f.GetMessage())})
	}
	return e
}

// callError says what the end of a call means: ctx is the caller's, err what came of the call.
func callError(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*sandbox.Error](err); ok {
		return e
	}
	if ctx.Err() != nil {
		return contextError(ctx, err)
	}
	ce, ok := errors.AsType[*connect.Error](err)
	if !ok {
		return unreachable(err)
	}
	if connect.IsWireError(err) {
		for _, d := range ce.Details() {
			if v, derr := d.Value(); derr == nil {
				if p, ok := v.(*problemv1.Problem); ok {
					return agentError(p)
				}
			}
		}
		return faultf("error without details, code %s", ce.Code())
	}
	if connectionLost(err) {
		return unreachable(err)
	}
	switch ce.Code() {
	case connect.CodeUnavailable, connect.CodeCanceled, connect.CodeAborted:
		return unreachable(err)
	case connect.CodeDeadlineExceeded:
		return tooSlow(err)
	}
	return faultf("%s", ce.Message())
}

func contextError(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return tooSlow(err)
	}
	return &sandbox.Error{Code: sandbox.CodeCanceled, Message: "the call was canceled", Err: fmt.Errorf("%w: %w", context.Canceled, err)}
}

func tooSlow(err error) error {
	return &sandbox.Error{Code: sandbox.CodeGuestNotReady, Message: "the sandbox did not answer in time",
		Remedy: "try again; if it stays so, the sandbox hangs", Err: fmt.Errorf("%w: %w", context.DeadlineExceeded, err)}
}

func unreachable(err error) error {
	return &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the sandbox's agent cannot be reached",
		Remedy: "try again in a moment", Err: err}
}

// connectionLost tells a broken connection from a broken answer.
func connectionLost(err error) bool {
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, ErrClosed) {
		return true
	}
	if _, ok := errors.AsType[net.Error](err); ok {
		return true
	}
	// net/http exports no values for what its HTTP/2 connections end with: no answer to a ping, closed from here,
	// a GOAWAY that ends streams.
	text := err.Error()
	return strings.Contains(text, "http2: client conn") || strings.Contains(text, "http2: server sent GOAWAY")
}

// cleanText makes text of a guest fit for records and terminals: valid UTF-8, no control characters, at most
// maxText bytes.
func cleanText(s string) string { return cleanTo(s, maxText) }

func cleanTo(s string, limit int) string {
	s = strings.ToValidUTF8(s[:min(len(s), limit)], "")
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return ' '
		}
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, s)
}
