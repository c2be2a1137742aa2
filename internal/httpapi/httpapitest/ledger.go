package httpapitest

import (
	"context"

	"github.com/space-sandbox/space/internal/control"
)

// stray is the one thing that is too much on the Fake's machine, until a Reconcile.
func stray() control.LedgerObject {
	return control.LedgerObject{Kind: "cgroup", Name: "vm-sbx_00000000000000000000000001", SandboxID: "sbx_00000000000000000000000001", Live: true}
}

// Ledger shows a stray control group until Reconcile has removed it, and a missing port for ever.
func (f *Fake) Ledger(context.Context) (control.Ledger, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := control.Ledger{Kinds: map[string]control.LedgerKind{"cgroup": {Live: 1}, "port": {Expected: 1}}, Drift: []control.LedgerObject{stray(), lost()}}
	if f.reconciled {
		l.Kinds["cgroup"], l.Drift = control.LedgerKind{}, l.Drift[1:]
	}
	return l, nil
}

func lost() control.LedgerObject {
	return control.LedgerObject{Kind: "port", Name: "tcp 127.0.0.1:7070", Expected: true}
}

// Reconcile removes the stray control group.
func (f *Fake) Reconcile(_ context.Context, dryRun bool) ([]control.Repair, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := []control.Repair{{LedgerObject: stray(), Action: "remove", Done: !dryRun},
		{LedgerObject: lost(), Action: "report", Reason: "it cannot be made again"}}
	if f.reconciled {
		all = all[1:]
	}
	f.reconciled = f.reconciled || !dryRun
	return all, nil
}
