package httpapi

import (
	"context"
	"net/http"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/problem"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/wire"
)

type lifecycleOutput struct {
	Status int
	ReplayHeader
	Location string `header:"Location" doc:"Where the operation is"`
	Body     apiv1.Lifecycle
}

// lifecycle makes a lifecycle call and answers it by the contract: 202 at once; when a wait was asked for, 200 when
// the operation succeeded, its error when it failed, 202 when the wait ran out.
func (s *server) lifecycle(ctx context.Context, what string, wait WaitParams, accept func() (control.Accepted, error)) (*lifecycleOutput, error) {
	timeout, asked, err := wait.duration()
	if err != nil {
		return nil, s.refused(ctx, what, err)
	}
	acc, err := accept()
	if err != nil {
		return nil, s.refused(ctx, what, err)
	}
	if asked {
		if acc, err = s.settle(ctx, acc, func() (operation.Operation, error) {
			return s.Control.GetOperation(ctx, acc.Operation.ID, timeout)
		}); err != nil {
			return nil, s.refusal(ctx, what, err, wire.ProblemOptions(acc.Operation))
		}
	}
	out := &lifecycleOutput{Status: http.StatusAccepted, ReplayHeader: replayed(acc.Replayed),
		Location: "/v1/operations/" + string(acc.Operation.ID),
		Body:     apiv1.Lifecycle{Operation: s.operationWire(acc.Operation, made{sandbox: &acc.Sandbox}), Sandbox: s.sandboxWire(acc.Sandbox)}}
	if acc.Operation.State == operation.Succeeded && (asked || acc.Operation.NoChange) {
		out.Status = http.StatusOK
	}
	return out, nil
}

// settle waits for an accepted operation and brings its sandbox up to date. The operation is returned with every error.
func (s *server) settle(ctx context.Context, acc control.Accepted, wait func() (operation.Operation, error)) (control.Accepted, error) {
	if !acc.Operation.State.Ended() {
		op, err := wait()
		if err != nil {
			return acc, err
		}
		acc.Operation = op
	}
	if acc.Operation.State == operation.Failed || acc.Operation.State == operation.Canceled {
		return acc, operationError(acc.Operation)
	}
	box, err := s.Control.GetSandbox(ctx, acc.Operation.Resource.ID)
	switch {
	case err == nil:
		acc.Sandbox = box
	case !isNotFound(err):
		return acc, err
	case acc.Operation.Kind == string(sandbox.VerbDelete): // after it there is none
		acc.Sandbox.State, acc.Sandbox.DesiredState = sandbox.StateDeleted, sandbox.StateDeleted
		acc.Sandbox.OperationID = ""
	}
	return acc, nil
}

// operationError is the error of an operation that ended without success.
func operationError(o operation.Operation) error {
	if o.Error != nil {
		return o.Error
	}
	if o.State == operation.Canceled {
		return sandbox.Errorf(sandbox.CodeCanceled, "the operation was canceled")
	}
	return sandbox.Errorf(sandbox.CodeInternal, "the operation failed and did not say why")
}

// refused is refusal for calls that concern no operation.
func (s *server) refused(ctx context.Context, what string, err error) error {
	return s.refusal(ctx, what, err, problem.Options{})
}

// errorResponses documents the error form for every status that is not listed.
func errorResponses() map[string]*huma.Response {
	return map[string]*huma.Response{"default": {
		Description: "The error form; docs/errors.md has the codes.",
		Content:     map[string]*huma.MediaType{problem.ContentType: {Schema: &huma.Schema{Ref: schemaPrefix + "Problem"}}},
	}}
}

// lifecycleResponses adds the second good status of a lifecycle call.
func lifecycleResponses() map[string]*huma.Response {
	all := errorResponses()
	all[strconv.Itoa(http.StatusOK)] = &huma.Response{
		Description: "The operation has succeeded (with a wait), or there was nothing to change.",
		Content:     map[string]*huma.MediaType{"application/json": {Schema: &huma.Schema{Ref: schemaPrefix + "Lifecycle"}}},
	}
	return all
}
