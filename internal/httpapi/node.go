package httpapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	apiv1 "github.com/space-sandbox/space/api/v1"
)

func (s *server) addNode() {
	huma.Register(s.api, huma.Operation{
		OperationID: "get-node", Method: http.MethodGet, Path: "/v1/node", Tags: []string{"Node"},
		Summary: "Get the machine SPACE runs on", Responses: errorResponses(), Metadata: map[string]any{metaAdmin: true},
		Description: "Needs a key with the role admin.",
	}, s.node)
	huma.Register(s.api, huma.Operation{
		OperationID: "drain-node", Method: http.MethodPost, Path: "/v1/node/drain", Tags: []string{"Node"},
		Summary: "Take no new work, or take it again", Responses: errorResponses(), Metadata: map[string]any{metaAdmin: true},
		Description: "Needs a key with the role admin. While the node is draining, creates and recoveries are refused with 503 draining; everything else works, and operations under way go on. It lasts over restarts. May be repeated.",
	}, s.drain)
	s.addLedger()
}

type drainInput struct{ Body apiv1.DrainNode }

type drainOutput struct{ Body apiv1.Drain }

func (s *server) drain(ctx context.Context, in *drainInput) (*drainOutput, error) {
	d, err := s.Control.Drain(ctx, in.Body.Drain)
	if err != nil {
		return nil, s.refused(ctx, "drain node", err)
	}
	return &drainOutput{Body: apiv1.Drain{Draining: d.Draining, OperationsUnderWay: d.UnderWay, Sandboxes: d.Sandboxes}}, nil
}

type nodeOutput struct{ Body apiv1.Node }

func (s *server) node(ctx context.Context, _ *struct{}) (*nodeOutput, error) {
	n, err := s.Control.Node(ctx)
	if err != nil {
		return nil, s.refused(ctx, "get node", err)
	}
	out := apiv1.Node{
		InstallationID: n.InstallationID, Version: s.Version, Kernel: n.Kernel, DefaultDriver: n.DefaultDriver,
		Drivers:   []apiv1.Driver{},
		Pool:      apiv1.Pool{Kind: n.PoolKind, TotalBytes: n.PoolTotal, FreeBytes: n.PoolFree, ReserveBytes: n.PoolReserve},
		Capacity:  apiv1.Capacity{CPUs: n.CPUs, MemoryBytes: n.MemoryBytes, MemoryFreeBytes: n.MemoryFree},
		Sandboxes: n.Sandboxes, MaxSandboxes: n.MaxSandboxes, Draining: n.Draining, OperationsUnderWay: n.UnderWay, Warnings: listNotNil(n.Warnings),
	}
	for _, d := range n.Drivers {
		out.Drivers = append(out.Drivers, apiv1.Driver{Name: d.Name, Available: d.Available, Isolation: d.Isolation, Version: d.Version, Reason: d.Reason})
	}
	if s.DevAuthWarning != "" {
		out.Warnings = append([]string{s.DevAuthWarning}, out.Warnings...)
	}
	return &nodeOutput{Body: out}, nil
}
