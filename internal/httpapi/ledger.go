package httpapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/control"
)

// maxDrift bounds the objects that one answer lists.
const maxDrift = 1000

func (s *server) addLedger() {
	huma.Register(s.api, huma.Operation{
		OperationID: "get-ledger", Method: http.MethodGet, Path: "/v1/node/ledger", Tags: []string{"Node"},
		Summary: "Compare what SPACE should have on the machine with what is there", Responses: errorResponses(), Metadata: map[string]any{metaAdmin: true},
		Description: "Needs a key with the role admin. Every object that SPACE makes in the kernel counts. Objects of others never do.",
	}, s.ledger)
	huma.Register(s.api, huma.Operation{
		OperationID: "reconcile-node", Method: http.MethodPost, Path: "/v1/node/reconcile", Tags: []string{"Node"},
		Summary: "Remove what nothing stands for", Responses: errorResponses(), Metadata: map[string]any{metaAdmin: true},
		Description: "Needs a key with the role admin. Removes objects of this installation that belong to no sandbox, and reports what it must not remove. With dry_run it only says what it would do. May be repeated.",
	}, s.reconcile)
}

type ledgerOutput struct{ Body apiv1.Ledger }

func (s *server) ledger(ctx context.Context, _ *struct{}) (*ledgerOutput, error) {
	l, err := s.Control.Ledger(ctx)
	if err != nil {
		return nil, s.refused(ctx, "get ledger", err)
	}
	out := apiv1.Ledger{Kinds: map[string]apiv1.LedgerKind{}, Drift: len(l.Drift), Objects: []apiv1.LedgerObject{}}
	for kind, n := range l.Kinds {
		out.Kinds[kind] = apiv1.LedgerKind{Live: n.Live, Expected: n.Expected}
	}
	for _, d := range l.Drift[:min(len(l.Drift), maxDrift)] {
		out.Objects = append(out.Objects, ledgerObject(d))
	}
	return &ledgerOutput{Body: out}, nil
}

func ledgerObject(d control.LedgerObject) apiv1.LedgerObject {
	return apiv1.LedgerObject{Kind: d.Kind, Name: d.Name, SandboxID: string(d.SandboxID), Live: d.Live, Expected: d.Expected}
}

type reconcileInput struct{ Body apiv1.ReconcileNode }

type reconcileOutput struct{ Body apiv1.Reconciled }

func (s *server) reconcile(ctx context.Context, in *reconcileInput) (*reconcileOutput, error) {
	repairs, err := s.Control.Reconcile(ctx, in.Body.DryRun)
	if err != nil {
		return nil, s.refused(ctx, "reconcile node", err)
	}
	out := apiv1.Reconciled{DryRun: in.Body.DryRun, Repairs: []apiv1.Repair{}}
	for _, r := range repairs[:min(len(repairs), maxDrift)] {
		out.Repairs = append(out.Repairs, apiv1.Repair{LedgerObject: ledgerObject(r.LedgerObject), Action: r.Action, Done: r.Done, Reason: r.Reason})
	}
	return &reconcileOutput{Body: out}, nil
}
