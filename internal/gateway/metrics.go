package gateway

import (
	"context"
	"io"
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/internal/ingress"
	"github.com/space-sandbox/space/internal/telemetry"
)

// metrics is what the gateway counts. Bytes are counted where they pass between guest and client.
type metrics struct {
	registry *prometheus.Registry
	streams  prometheus.Gauge
	bytes    *prometheus.CounterVec
}

func newMetrics(g *Gateway) *metrics {
	m := &metrics{registry: telemetry.NewRegistry(),
		streams: prometheus.NewGauge(prometheus.GaugeOpts{Name: "space_gateway_attach_streams",
			Help: "Output streams of command sessions that are open now."}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "space_gateway_bytes_total",
			Help: "Bytes from guests (out) and to guests (in), of command sessions and of files and standard input by request (raw)."},
			[]string{"kind", "direction"}),
	}
	m.registry.MustRegister(m.streams, m.bytes, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "space_gateway_routes",
		Help: "Sandboxes that can be reached."}, func() float64 {
		g.mu.Lock()
		defer g.mu.Unlock()
		n := 0
		for _, rt := range g.routes {
			if rt.link != nil {
				n++
			}
		}
		return float64(n)
	}))
	return m
}

// counted is a guest of the data plane whose streams and bytes are counted.
type counted struct {
	ingress.Guest
	metrics *metrics
}

// Attach implements ingress.Guest.
func (c counted) Attach(ctx context.Context, req *agentv1.AttachRequest) (ingress.Stream, error) {
	s, err := c.Guest.Attach(ctx, req)
	if err != nil {
		return nil, err
	}
	c.metrics.streams.Inc()
	return &countedStream{Stream: s, bytes: c.metrics.bytes.WithLabelValues("attach", "out"), closed: sync.OnceFunc(c.metrics.streams.Dec)}, nil
}

// WriteStdin implements ingress.Guest.
func (c counted) WriteStdin(ctx context.Context, req *agentv1.WriteStdinRequest) (uint64, error) {
	n, err := c.Guest.WriteStdin(ctx, req)
	if err == nil {
		c.metrics.bytes.WithLabelValues("attach", "in").Add(float64(len(req.GetData())))
	}
	return n, err
}

type countedStream struct {
	ingress.Stream
	bytes  prometheus.Counter
	closed func()
}

// Receive implements ingress.Stream.
func (s *countedStream) Receive() (*agentv1.AttachResponse, error) {
	res, err := s.Stream.Receive()
	if err == nil {
		s.bytes.Add(float64(len(res.GetData().GetData())))
	}
	return res, err
}

// Close implements ingress.Stream.
func (s *countedStream) Close() {
	s.closed()
	s.Stream.Close()
}

// countRaw counts the bodies of raw requests and of their answers.
func (m *metrics) countRaw(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = &countedBody{ReadCloser: r.Body, bytes: m.bytes.WithLabelValues("raw", "in")}
		next.ServeHTTP(&countedWriter{ResponseWriter: w, bytes: m.bytes.WithLabelValues("raw", "out")}, r)
	})
}

type countedBody struct {
	io.ReadCloser
	bytes prometheus.Counter
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.bytes.Add(float64(n))
	return n, err
}

type countedWriter struct {
	http.ResponseWriter
	bytes prometheus.Counter
}

func (w *countedWriter) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	w.bytes.Add(float64(n))
	return n, err
}

// Unwrap is for http.ResponseController.
func (w *countedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
