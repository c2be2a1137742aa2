package telemetry

import (
	"context"
	"log/slog"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/space-sandbox/space/internal/rpc"
	"github.com/space-sandbox/space/internal/sandbox"
)

// TraceCalls returns the interceptor that takes the trace of a call's context to the other process. It is for clients.
func TraceCalls() connect.Interceptor { return injector{} }

type injector struct{}

func (injector) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		Inject(ctx, req.Header())
		return next(ctx, req)
	}
}

func (injector) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		Inject(ctx, conn.RequestHeader())
		return conn
	}
}

func (injector) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// ObserveCalls returns the interceptor for servers that takes up the trace of each call, logs the call under it (level
// debug) and measures it in space_<process>_call_seconds. It must stand outside of rpc.Errors.
func ObserveCalls(process string, registry prometheus.Registerer, logger *slog.Logger) connect.Interceptor {
	o := &observer{logger: logger, seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "space_" + process + "_call_seconds", Help: "Time of the calls that control makes.", Buckets: Buckets(),
	}, []string{"procedure", "code"})}
	registry.MustRegister(o.seconds)
	return o
}

type observer struct {
	logger  *slog.Logger
	seconds *prometheus.HistogramVec
}

func (o *observer) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		ctx = Extract(ctx, req.Header())
		began := time.Now()
		res, err := next(ctx, req)
		code := "ok"
		if err != nil {
			code = string(sandbox.CodeOf(rpc.FromConnect(err)))
		}
		took := time.Since(began)
		o.seconds.WithLabelValues(req.Spec().Procedure, code).Observe(took.Seconds())
		o.logger.DebugContext(ctx, "call", "procedure", req.Spec().Procedure, "code", code, "ms", took.Milliseconds())
		return res, err
	}
}

func (o *observer) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (o *observer) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		return next(Extract(ctx, conn.RequestHeader()), conn)
	}
}
