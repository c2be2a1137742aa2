package node

import (
	"context"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	nodev1 "github.com/space-sandbox/space/api/proto/node/v1"
	"github.com/space-sandbox/space/internal/telemetry"
)

// metrics is what node counts.
type metrics struct {
	registry *prometheus.Registry
	steps    *prometheus.HistogramVec
	holds    prometheus.Counter
	calls    connect.Interceptor
}

func newMetrics(n *Node) *metrics {
	m := &metrics{registry: telemetry.NewRegistry(),
		steps: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "space_node_step_seconds",
			Help: "Time of the parts of making machines, and of removing them.", Buckets: telemetry.Buckets()}, []string{"step"})}
	m.holds = prometheus.NewCounter(prometheus.CounterOpts{Name: "space_node_holds_total",
		Help: "How often a machine was paused because the pool was nearly full."})
	m.calls = telemetry.ObserveCalls("node", m.registry, n.deps.Logger)
	m.registry.MustRegister(m.steps, m.holds, machineCounter{n}, poolGauge{n}, ledgerGauge{n})
	return m
}

// machineCounter counts the machines by state when it is asked.
type machineCounter struct{ n *Node }

func (m machineCounter) desc() *prometheus.Desc {
	return prometheus.NewDesc("space_node_machines", "Machines by state.", []string{"state"}, nil)
}

// Describe implements prometheus.Collector.
func (m machineCounter) Describe(ch chan<- *prometheus.Desc) { ch <- m.desc() }

// Collect implements prometheus.Collector.
func (m machineCounter) Collect(ch chan<- prometheus.Metric) {
	counts := map[string]int{"running": 0, "paused": 0, "exited": 0}
	for _, machine := range m.n.hub.snapshot() {
		switch machine.GetState() {
		case nodev1.MachineState_MACHINE_STATE_EXITED:
			counts["exited"]++
		case nodev1.MachineState_MACHINE_STATE_PAUSED:
			counts["paused"]++
		default:
			counts["running"]++
		}
	}
	for state, n := range counts {
		ch <- prometheus.MustNewConstMetric(m.desc(), prometheus.GaugeValue, float64(n), state)
	}
}

// poolGauge shows how full the pool is when it is asked.
type poolGauge struct{ n *Node }

func (p poolGauge) desc() *prometheus.Desc {
	return prometheus.NewDesc("space_node_pool_bytes", "Size of the pool, what is free of it, and the reserve below which machines are paused.", []string{"kind"}, nil)
}

// Describe implements prometheus.Collector.
func (p poolGauge) Describe(ch chan<- *prometheus.Desc) { ch <- p.desc() }

// Collect implements prometheus.Collector.
func (p poolGauge) Collect(ch chan<- prometheus.Metric) {
	usage, err := p.n.deps.Usage(context.Background())
	if err != nil {
		ch <- prometheus.NewInvalidMetric(p.desc(), err)
		return
	}
	ch <- prometheus.MustNewConstMetric(p.desc(), prometheus.GaugeValue, float64(usage.TotalBytes), "total")
	ch <- prometheus.MustNewConstMetric(p.desc(), prometheus.GaugeValue, float64(usage.FreeBytes), "free")
	ch <- prometheus.MustNewConstMetric(p.desc(), prometheus.GaugeValue, float64(p.n.reserve.bytes(usage.TotalBytes)), "reserve")
}
