package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
)

const tagOperations = "Operations"

func (s *server) addOperations() {
	huma.Register(s.api, huma.Operation{
		OperationID: "list-operations", Method: http.MethodGet, Path: "/v1/operations", Tags: []string{tagOperations},
		Summary: "List operations", Responses: errorResponses(),
	}, s.listOperations)
	huma.Register(s.api, huma.Operation{
		OperationID: "get-operation", Method: http.MethodGet, Path: "/v1/operations/{id}", Tags: []string{tagOperations},
		Summary: "Get an operation, or wait for it", Responses: errorResponses(),
		Description: "A failed operation is answered with 200: it was found. Its error is inside.",
	}, s.getOperation)
	huma.Register(s.api, huma.Operation{
		OperationID: "cancel-operation", Method: http.MethodPost, Path: "/v1/operations/{id}/cancel", Tags: []string{tagOperations},
		Summary: "Cancel an operation", Responses: errorResponses(),
		Description: "What is still queued is taken back; a pause, resume or recover under way is interrupted, and may have got done by then. A create or import under way is not: delete its sandbox. A delete never is. A canceled one stays as it is.",
	}, s.cancelOperation)
}

// OperationPath names an operation in a path. It is exported, like all that is embedded in inputs, for huma to see it.
type OperationPath struct {
	ID string `path:"id" maxLength:"64" example:"op_k3v0q7c2m9x4b8n1z5w6"`
}

type operationOutput struct{ Body apiv1.Operation }

type getOperationInput struct {
	OperationPath
	WaitParams
}

func (s *server) getOperation(ctx context.Context, in *getOperationInput) (*operationOutput, error) {
	return s.oneOperation(ctx, "get operation", in.ID, func(id sandbox.OperationID) (operation.Operation, error) {
		wait, _, err := in.duration()
		if err != nil {
			return operation.Operation{}, err
		}
		return s.Control.GetOperation(ctx, id, wait)
	})
}

type cancelInput struct {
	OperationPath
	IdempotencyParam
}

type canceledOutput struct {
	ReplayHeader
	Body apiv1.Operation
}

func (s *server) cancelOperation(ctx context.Context, in *cancelInput) (*canceledOutput, error) {
	again := false
	out, err := s.oneOperation(ctx, "cancel operation", in.ID, func(id sandbox.OperationID) (op operation.Operation, err error) {
		call, err := in.call(ctx, "POST /v1/operations/"+in.ID+"/cancel", nil)
		if err != nil {
			return op, err
		}
		again, err = s.Control.Once(ctx, call, in.ID, func() error { op, err = s.Control.CancelOperation(ctx, id); return err })
		if again {
			return s.Control.GetOperation(ctx, id, 0)
		}
		return op, err
	})
	if err != nil {
		return nil, err
	}
	return &canceledOutput{ReplayHeader: replayed(again), Body: out.Body}, nil
}

func (s *server) oneOperation(ctx context.Context, what, id string, do func(sandbox.OperationID) (operation.Operation, error)) (*operationOutput, error) {
	parsed, err := sandbox.ParseOperationID(id)
	if err != nil {
		return nil, s.refused(ctx, what, err)
	}
	op, err := do(parsed)
	if err != nil {
		return nil, s.refused(ctx, what, err)
	}
	made, err := s.madeBy(ctx, op)
	if err != nil {
		return nil, s.refused(ctx, what, err)
	}
	return &operationOutput{Body: s.operationWire(op, made)}, nil
}

// made is what an operation has made or changed; nil parts are not its business, or gone.
type made struct {
	sandbox  *sandbox.Sandbox
	template *sandbox.Template
}

// madeBy looks up what a succeeded operation was about.
func (s *server) madeBy(ctx context.Context, op operation.Operation) (made, error) {
	if op.State != operation.Succeeded {
		return made{}, nil
	}
	var m made
	var err error
	switch op.Resource.Type {
	case resourceSandbox:
		var box sandbox.Sandbox
		if box, err = s.Control.GetSandbox(ctx, op.Resource.ID); err == nil {
			m.sandbox = &box
		}
	case resourceTemplate:
		var t sandbox.Template
		if t, err = s.Control.GetTemplate(ctx, op.Resource.ID); err == nil {
			m.template = &t
		}
	}
	if isNotFound(err) {
		return made{}, nil
	}
	return m, err
}

type operationListOutput struct{ Body apiv1.List[apiv1.Operation] }

type listOperationsInput struct {
	PageParams
	State        string    `query:"state" doc:"One or more states, separated by commas" example:"queued,running"`
	SandboxID    string    `query:"sandbox_id" maxLength:"64" doc:"Only those of this sandbox (id, or name of a live one)"`
	CreatedAfter time.Time `query:"created_after" doc:"Only those accepted after this time"`
}

func (s *server) listOperations(ctx context.Context, in *listOperationsInput) (*operationListOutput, error) {
	states, err := oneOf("state", in.State, operation.Queued, operation.Running, operation.Succeeded, operation.Failed, operation.Canceled)
	if err != nil {
		return nil, s.refused(ctx, "list operations", err)
	}
	filter := control.OperationFilter{PageRequest: in.request(), States: states, CreatedAfter: in.CreatedAfter}
	if in.SandboxID != "" {
		var id sandbox.ID
		ref, err := sandboxRef(in.SandboxID)
		if err == nil {
			id, err = s.Control.SandboxID(ctx, ref)
		}
		if err != nil {
			return nil, s.refused(ctx, "list operations", err)
		}
		filter.ResourceID = string(id)
	}
	page, err := s.Control.ListOperations(ctx, filter)
	if err != nil {
		return nil, s.refused(ctx, "list operations", err)
	}
	out := &operationListOutput{Body: apiv1.List[apiv1.Operation]{Items: []apiv1.Operation{}, NextCursor: page.NextCursor, Total: page.Total}}
	for _, op := range page.Items {
		made, err := s.madeBy(ctx, op)
		if err != nil {
			return nil, s.refused(ctx, "list operations", err)
		}
		out.Body.Items = append(out.Body.Items, s.operationWire(op, made))
	}
	return out, nil
}
