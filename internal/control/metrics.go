package control

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/rpc"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/telemetry"
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
	m := &metrics{registry: telemetry.NewRegistry(),
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
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "space_creates_queued",
			Help: "Creates and recoveries that were accepted and wait for their turn."}, func() float64 { return float64(c.turns.queued()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "space_draining", Help: "1 while new work is refused."}, func() float64 {
			if c.draining.Load() {
				return 1
			}
			return 0
		}),
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
	counts := map[sandbox.State]int{}
	for _, state := range sandbox.States() {
		if state != sandbox.StateDeleted {
			counts[state] = 0
		}
	}
	for _, box := range live {
		counts[box.State]++
	}
	for state, n := range counts {
		ch <- prometheus.MustNewConstMetric(s.desc(), prometheus.GaugeValue, float64(n), string(state))
	}
}

// scrapeTimeout bounds what another process may take to show its metrics.
const scrapeTimeout = 2 * time.Second

// Metrics writes the metrics of all processes in the Prometheus text form. One that does not show its own in time is
// left out: space_scrape_up says so.
func (c *Control) Metrics(ctx context.Context, w io.Writer) error {
	families, err := c.metrics.registry.Gather()
	if err != nil {
		return fmt.Errorf("gather metrics: %w", err)
	}
	var all telemetry.Merged
	all.Add("control", families)
	up := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "space_scrape_up",
		Help: "1 when this process has shown its metrics."}, []string{"process"})
	for _, part := range []struct {
		name string
		http *http.Client
	}{{"node", c.NodeHTTP}, {"gateway", c.GatewayHTTP}} {
		if part.http == nil {
			continue
		}
		if err := scrape(ctx, part.http, part.name, &all); err != nil {
			c.Logger.DebugContext(ctx, "no metrics", "of", part.name, "error", err)
			up.WithLabelValues(part.name).Set(0)
			continue
		}
		up.WithLabelValues(part.name).Set(1)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(up)
	if families, err = registry.Gather(); err != nil {
		return fmt.Errorf("gather metrics: %w", err)
	}
	all.Add("control", families)
	return telemetry.Write(w, all.Families())
}

func scrape(ctx context.Context, client *http.Client, name string, into *telemetry.Merged) error {
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, rpc.BaseURL+telemetry.MetricsPath, nil)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("HTTP status %s", res.Status)
	}
	return into.AddText(name, res.Body)
}
