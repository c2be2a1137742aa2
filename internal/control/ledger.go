package control

import (
	"context"
	"time"

	nodev1 "github.com/space-sandbox/space/api/proto/node/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

// reconcileTimeout bounds a reconcile: each removal has a limit of its own on node.
const reconcileTimeout = 5 * time.Minute

// Ledger asks node to compare what it should have made with what there is.
func (c *Control) Ledger(ctx context.Context) (Ledger, error) {
	res, err := call(ctx, c.Limits.CallTimeout, c.Deps.Node.GetLedger, &nodev1.GetLedgerRequest{})
	if err != nil {
		return Ledger{}, err
	}
	l := Ledger{Kinds: map[string]LedgerKind{}}
	for _, k := range res.Kinds {
		l.Kinds[k.Kind] = LedgerKind{Live: int(k.Live), Expected: int(k.Expected)}
	}
	for _, d := range res.Drift {
		l.Drift = append(l.Drift, ledgerObject(d))
	}
	return l, nil
}

// Reconcile has node remove what nothing stands for; with dryRun it only says what it would do.
func (c *Control) Reconcile(ctx context.Context, dryRun bool) ([]Repair, error) {
	res, err := call(ctx, reconcileTimeout, c.Deps.Node.Reconcile, &nodev1.ReconcileRequest{DryRun: dryRun})
	if err != nil {
		return nil, err
	}
	var repairs []Repair
	for _, r := range res.Repairs {
		repairs = append(repairs, Repair{LedgerObject: ledgerObject(r.Drift), Action: r.Action, Done: r.Done, Reason: r.Reason})
	}
	return repairs, nil
}

func ledgerObject(d *nodev1.LedgerDrift) LedgerObject {
	return LedgerObject{Kind: d.GetKind(), Name: d.GetName(), SandboxID: sandbox.ID(d.GetSandboxId()), Live: d.GetLive(), Expected: d.GetExpected()}
}
