package telemetry

import (
	"bytes"
	"fmt"
	"io"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

// ContentType is that of the Prometheus text form.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// MetricsPath is where node and gateway show their metrics to control, on their unix sockets.
const MetricsPath = "/metrics"

// Buckets are for times in seconds: from a call between processes to the boot of an emulated machine.
func Buckets() []float64 {
	return []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120}
}

// NewRegistry returns a registry of its own (there are no global ones) that shows the Go runtime and the process.
func NewRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// Handler serves a registry in the text form.
func Handler(r *prometheus.Registry) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		var buf bytes.Buffer // a fault half-way must not look like an answer
		families, err := r.Gather()
		if err == nil {
			err = Write(&buf, families)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", ContentType)
		_, _ = w.Write(buf.Bytes()) // a reader that has gone away is nobody's error
	})
}

// Write writes metrics in the text form.
func Write(w io.Writer, families []*dto.MetricFamily) error {
	enc := expfmt.NewEncoder(w, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, f := range families {
		if err := enc.Encode(f); err != nil {
			return fmt.Errorf("write metrics: %w", err)
		}
	}
	return nil
}
