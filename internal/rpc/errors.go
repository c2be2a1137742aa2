package rpc

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"

	problemv1 "github.com/space-sandbox/space/api/proto/problem/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

// ToConnect gives err the form in which it crosses between our processes: a Connect code by its status, and the
// whole *sandbox.Error as a detail. What an internal error wraps is kept as its cause, since the other end is ours.
func ToConnect(err error) error {
	if err == nil {
		return nil
	}
	_, ours := errors.AsType[*sandbox.Error](err) // it may wrap the Connect error of a call it made itself
	if ce, ok := errors.AsType[*connect.Error](err); ok && !ours {
		return ce
	}
	e := sandbox.AsError(err)
	switch {
	case e.Code != sandbox.CodeInternal:
	case errors.Is(err, context.Canceled): // also when this process is ending
		e = &sandbox.Error{Code: sandbox.CodeCanceled, Message: "the call was canceled", Err: err}
	case errors.Is(err, context.DeadlineExceeded):
		e = &sandbox.Error{Code: sandbox.CodeDeadline, Message: "the call did not end within its deadline", Err: err}
	}
	p := &problemv1.Problem{Code: string(e.Code), Message: e.Message, Cause: e.Cause, Remedy: e.Remedy}
	if e.Err != nil && p.Cause == "" {
		p.Cause = e.Err.Error()
	}
	for _, f := range e.Fields {
		p.Fields = append(p.Fields, &problemv1.FieldProblem{Field: f.Field, Message: f.Message})
	}
	ce := connect.NewError(connectCode(err, e), errors.New(e.Message))
	if d, err := connect.NewErrorDetail(p); err == nil {
		ce.AddDetail(d)
	}
	return ce
}

func connectCode(err error, e *sandbox.Error) connect.Code {
	if errors.Is(err, context.Canceled) {
		return connect.CodeCanceled
	}
	switch e.Code.Info().Status {
	case 400, 413:
		return connect.CodeInvalidArgument
	case 401:
		return connect.CodeUnauthenticated
	case 403:
		return connect.CodePermissionDenied
	case 404:
		return connect.CodeNotFound
	case 409, 412:
		return connect.CodeFailedPrecondition
	case 429, 507:
		return connect.CodeResourceExhausted
	case 503:
		return connect.CodeUnavailable
	case 504:
		return connect.CodeDeadlineExceeded
	}
	return connect.CodeInternal
}

// FromConnect is the inverse of ToConnect. An error without our detail (the other end is away, or its answer was cut
// off) becomes unavailable, deadline_exceeded, canceled or internal by its Connect code.
func FromConnect(err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*sandbox.Error](err); ok {
		return e
	}
	ce, ok := errors.AsType[*connect.Error](err)
	if !ok {
		return err
	}
	for _, d := range ce.Details() {
		v, derr := d.Value()
		if p, ok := v.(*problemv1.Problem); ok && derr == nil {
			return problemError(p)
		}
	}
	return bareError(ce)
}

func problemError(p *problemv1.Problem) *sandbox.Error {
	e := &sandbox.Error{Code: sandbox.Code(p.Code), Message: p.Message, Cause: p.Cause, Remedy: p.Remedy}
	if e.Code.Info().Code != e.Code {
		e.Code = sandbox.CodeInternal
	}
	for _, f := range p.Fields {
		e.Fields = append(e.Fields, sandbox.FieldError{Field: f.Field, Message: f.Message})
	}
	return e
}

func bareError(ce *connect.Error) error {
	switch ce.Code() {
	case connect.CodeUnavailable, connect.CodeUnknown, connect.CodeAborted:
		return &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "a part of SPACE does not answer",
			Cause: ce.Message(), Remedy: "try again in a moment; see the log of space up", Err: ce}
	case connect.CodeDeadlineExceeded:
		return &sandbox.Error{Code: sandbox.CodeDeadline, Message: "a part of SPACE did not answer in time",
			Cause: ce.Message(), Remedy: "try again", Err: fmt.Errorf("%w: %w", context.DeadlineExceeded, ce)}
	case connect.CodeCanceled:
		return &sandbox.Error{Code: sandbox.CodeCanceled, Message: "the call was canceled",
			Cause: ce.Message(), Err: fmt.Errorf("%w: %w", context.Canceled, ce)}
	}
	return &sandbox.Error{Code: sandbox.CodeInternal, Message: "a part of SPACE answered with an error",
		Cause: ce.Message(), Remedy: "see the log of the SPACE processes", Err: ce}
}

// Errors returns the interceptor that applies ToConnect in servers and FromConnect in clients.
func Errors() connect.Interceptor { return errorMapper{} }

type errorMapper struct{}

func (errorMapper) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		res, err := next(ctx, req)
		if err == nil {
			return res, nil
		}
		if req.Spec().IsClient {
			return nil, FromConnect(err)
		}
		return nil, ToConnect(err)
	}
}

func (errorMapper) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		return clientConn{next(ctx, spec)}
	}
}

func (errorMapper) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		return ToConnect(next(ctx, conn))
	}
}

// clientConn leaves io.EOF and Connect errors in the stream as they are: connect's own stream types expect them.
// Callers of ServerStreamForClient.Err use FromConnect.
type clientConn struct{ connect.StreamingClientConn }
