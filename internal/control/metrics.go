package control

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
)

// metrics is what control counts. The registry is its own: there are no global ones.
type metrics struct {
	registry *prometheus.Registry
	duration *prometheus.HistogramVec // of operations, from acceptance to end
	steps    *prometheus.HistogramVec
	exits    *prometheus.CounterVec
	drift    *prometheus.CounterVec
}

func newMetrics(c *Control) *metrics {
	buckets := []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120}
	m := &metrics{registry: prometheus.NewRegistry(),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "space_operation_seconds",
			Help: "Time from the acceptance of an operation to its end.", Buckets: buckets}, []string{"kind", "state"}),
		steps: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "space_operation_step_seconds",
			Help: "Time of the steps of operations.", Buckets: buckets}, []string{"kind", "step"}),
		exits: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "space_machine_exits_total",
			Help: "Machines that ended without being told to."}, []string{"reason"}),
		drift: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "space_drift_total",
			Help: "Differences between record and node that were put right."}, []string{"kind"}),
	}
	m.registry.MustRegister(m.duration, m.steps, m.exits, m.drift, sandboxCounter{c},
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "space_store_commits_total",
			Help: "Writes of the store that were made durable."}, func() float64 { return float64(c.Store.Commits()) }),
		linkGauge(c.node), linkGauge(c.gateway))
	return m
}

func linkGauge(l *link) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "space_link_up",
		Help: "1 while control is connected to this process.", ConstLabels: prometheus.Labels{"to": l.name}},
		func() float64 {
			if l.check() == nil {
				return 1
			}
			return 0
		})
}

// ended counts an operation. Only control's own steps become labels: stages have names that others choose.
func (m *metrics) ended(op operation.Operation) {
	m.duration.WithLabelValues(op.Kind, string(op.State)).Observe(op.EndedAt.Sub(op.CreatedAt).Seconds())
	for _, s := range op.Steps {
		if strings.Contains(s.Name, "/") {
			continue
		}
		m.steps.WithLabelValues(op.Kind, s.Name).Observe(s.EndedAt.Sub(s.StartedAt).Seconds())
	}
}

// sandboxCounter counts the live sandboxes by state when it is asked.
type sandboxCounter struct{ c *Control }

func (s sandboxCounter) desc() *prometheus.Desc {
	return prometheus.NewDesc("space_sandboxes", "Live sandboxes by state.", []string{"state"}, nil)
}

// Describe implements prometheus.Collector.
func (s sandboxCounter) Describe(ch chan<- *prometheus.Desc) { ch <- s.desc() }

// Collect implements prometheus.Collector.
func (s sandboxCounter) Collect(ch chan<- prometheus.Metric) {
	live, err := s.c.Store.LiveSandboxes(context.Background())
	if err != nil {
		ch <- prometheus.NewInvalidMetric(s.desc(), err)
		return
	}
	counts := map[sandbox.State]int{sandbox.StateCreating: 0, sandbox.StateRunning: 0, sandbox.StateFailed: 0, sandbox.StateDeleting: 0}
	for _, box := range live {
		counts[box.State]++
	}
	for state, n := range counts {
		ch <- prometheus.MustNewConstMetric(s.desc(), prometheus.GaugeValue, float64(n), string(state))
	}
}

// Metrics writes the Prometheus text form.
func (c *Control) Metrics(w io.Writer) error {
	families, err := c.metrics.registry.Gather()
	if err != nil {
		return fmt.Errorf("gather metrics: %w", err)
	}
	enc := expfmt.NewEncoder(w, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, f := range families {
		if err := enc.Encode(f); err != nil {
			return fmt.Errorf("write metrics: %w", err)
		}
	}
	return nil
}
