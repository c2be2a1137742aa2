package httpapi

import (
	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/wire"
)

// listNotNil returns an empty list for nil, which JSON would show as null.
func listNotNil(v []string) []string {
	if v == nil {
		return []string{}
	}
	return v
}

func (s *server) sandboxWire(b sandbox.Sandbox) apiv1.Sandbox { return wire.Sandbox(b, s.DataPlaneURL) }

// operationWire shows o; m is what a succeeded operation worked on.
func (s *server) operationWire(o operation.Operation, m made) apiv1.Operation {
	out := wire.Operation(o)
	if o.State == operation.Succeeded {
		out.Result = &apiv1.OperationResult{}
		if m.sandbox != nil {
			box := s.sandboxWire(*m.sandbox)
			out.Result.Sandbox = &box
		}
		if m.template != nil {
			tpl := wire.Template(*m.template, nameIn(*m.template, ""))
			out.Result.Template = &tpl
		}
	}
	return out
}

func attachWire(a control.Attach) apiv1.Attach {
	return apiv1.Attach{URL: a.URL, Token: a.Token, ExpiresAt: a.ExpiresAt.UTC()}
}
