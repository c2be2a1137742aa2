package agent

import (
	"context"
	"log/slog"
	"net/http"
	"regexp"

	"connectrpc.com/connect"

	"github.com/space-sandbox/space/internal/sandbox"
)

// Requests say to which trace they belong as the host's processes do among themselves (W3C Trace Context). The agent
// only repeats the id in its log, which is the console: so it is read here, in a few lines, and PID 1 of every guest
// stays without what the host measures itself with.
const traceHeader = "Traceparent"

var tracePattern = regexp.MustCompile(`^[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(-|$)`)

type traceKey struct{}

// traced notes the trace of each request in its context.
func traced(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if m := tracePattern.FindStringSubmatch(r.Header.Get(traceHeader)); m != nil {
			r = r.WithContext(context.WithValue(r.Context(), traceKey{}, m[1]))
		}
		next.ServeHTTP(w, r)
	})
}

// traceLog adds trace_id to what is logged for a request.
type traceLog struct{ slog.Handler }

// Handle implements slog.Handler.
func (h traceLog) Handle(ctx context.Context, r slog.Record) error {
	if id, ok := ctx.Value(traceKey{}).(string); ok {
		r = r.Clone()
		r.AddAttrs(slog.String("trace_id", id))
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h traceLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return traceLog{h.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h traceLog) WithGroup(name string) slog.Handler { return traceLog{h.Handler.WithGroup(name)} }

// faults logs calls that failed for a reason that is not the caller's.
func faults(log *slog.Logger) connect.Interceptor {
	return connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			res, err := next(ctx, req)
			if err != nil && ctx.Err() == nil && sandbox.CodeOf(err) == sandbox.CodeInternal {
				log.WarnContext(ctx, "a call failed", "procedure", req.Spec().Procedure, "error", err)
			}
			return res, err
		}
	})
}
