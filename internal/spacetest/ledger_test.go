package spacetest_test

import (
	"strings"
	"testing"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/spacetest"
)

// TestLedger: the ledger by the API agrees with the sandboxes, over restarts of node, and shows in the metrics.
func TestLedger(t *testing.T) {
	t.Parallel()
	i := spacetest.Start(t)
	agree := func(disks int) {
		t.Helper()
		l, err := i.Client.Ledger(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if l.Drift != 0 || l.Kinds["uid"] != (apiv1.LedgerKind{Live: disks, Expected: disks}) {
			t.Errorf("%+v", l)
		}
		if r, err := i.Client.Reconcile(t.Context(), apiv1.ReconcileNode{}); err != nil || len(r.Repairs) > 0 {
			t.Errorf("%+v, %v", r, err)
		}
	}
	agree(0)
	box := create(t, i)
	agree(1)
	i.Stop("node")
	i.StartNode()
	agree(1)
	metrics, err := i.Client.Metrics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{`space_ledger_objects{kind="uid",process="node",state="live"} 1`, `space_ledger_objects{kind="uid",process="node",state="expected"} 1`} {
		if !strings.Contains(string(metrics), line) {
			t.Errorf("%s is not in the metrics:\n%s", line, metrics)
		}
	}
	remove(t, i, box.ID)
	agree(0)
}
