package node

import (
	"context"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	nodev1 "github.com/space-sandbox/space/api/proto/node/v1"
	"github.com/space-sandbox/space/internal/node/ledger"
)

// GetLedger implements NodeService.
func (s service) GetLedger(ctx context.Context, _ *connect.Request[nodev1.GetLedgerRequest]) (*connect.Response[nodev1.GetLedgerResponse], error) {
	report, err := s.n.ledger.Count(ctx)
	if err != nil {
		return nil, err
	}
	res := &nodev1.GetLedgerResponse{}
	for _, t := range report.Tallies {
		res.Kinds = append(res.Kinds, &nodev1.LedgerKind{Kind: string(t.Kind), Live: uint64(t.Live), Expected: uint64(t.Expected)})
	}
	for _, d := range report.Drift {
		res.Drift = append(res.Drift, driftProto(d))
	}
	return connect.NewResponse(res), nil
}

// Reconcile implements NodeService.
func (s service) Reconcile(ctx context.Context, req *connect.Request[nodev1.ReconcileRequest]) (*connect.Response[nodev1.ReconcileResponse], error) {
	repairs, err := s.n.ledger.Reconcile(ctx, req.Msg.DryRun)
	if err != nil {
		return nil, err
	}
	res := &nodev1.ReconcileResponse{}
	for _, r := range repairs {
		if !req.Msg.DryRun {
			s.n.deps.Logger.WarnContext(ctx, "reconcile", "kind", r.Kind, "name", r.Name, "sandbox_id", r.SandboxID(), "action", r.Action,
				"done", r.Done, "reason", r.Reason)
		}
		res.Repairs = append(res.Repairs, &nodev1.Repair{Drift: driftProto(r.Drift), Action: r.Action, Done: r.Done, Reason: r.Reason})
	}
	return connect.NewResponse(res), nil
}

func driftProto(d ledger.Drift) *nodev1.LedgerDrift {
	return &nodev1.LedgerDrift{Kind: string(d.Kind), Name: d.Name, SandboxId: d.SandboxID(), Live: d.Live, Expected: !d.Live}
}

// ledgerGauge shows how many objects there are, and should be, when it is asked.
type ledgerGauge struct{ n *Node }

// ledgerTimeout bounds a look at the host for the metrics.
const ledgerTimeout = 10 * time.Second

func (g ledgerGauge) desc() *prometheus.Desc {
	return prometheus.NewDesc("space_ledger_objects", "Objects of the kernel that are there (live), and that should be (expected).", []string{"kind", "state"}, nil)
}

// Describe implements prometheus.Collector.
func (g ledgerGauge) Describe(ch chan<- *prometheus.Desc) { ch <- g.desc() }

// Collect implements prometheus.Collector. What cannot be looked at is left out and logged: the other metrics stand.
func (g ledgerGauge) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(g.n.life, ledgerTimeout)
	defer cancel()
	report, err := g.n.ledger.Count(ctx)
	if err != nil {
		g.n.deps.Logger.Error("the ledger is missing in the metrics", "error", err)
		return
	}
	for _, t := range report.Tallies {
		ch <- prometheus.MustNewConstMetric(g.desc(), prometheus.GaugeValue, float64(t.Live), string(t.Kind), "live")
		ch <- prometheus.MustNewConstMetric(g.desc(), prometheus.GaugeValue, float64(t.Expected), string(t.Kind), "expected")
	}
}
