package control

import (
	"context"
	"errors"
	"fmt"

	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
)

// storeError gives an error of the store the form of the house. Errors that have it already stay as they are.
func storeError(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*sandbox.Error](err); ok {
		return err
	}
	switch {
	case errors.Is(err, store.ErrNameTaken):
		return &sandbox.Error{Code: sandbox.CodeNameTaken, Message: "a live sandbox has this name",
			Cause:  "names are unique among sandboxes that are not deleted",
			Remedy: "choose another name, or delete that sandbox", Err: err}
	case errors.Is(err, store.ErrBadCursor):
		return invalid("cursor", "was not made by this list")
	case errors.Is(err, store.ErrClosed):
		return &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "SPACE is stopping", Remedy: "try again in a moment", Err: err}
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return &sandbox.Error{Code: sandbox.CodeCanceled, Message: "the request was canceled", Err: err}
	}
	return &sandbox.Error{Code: sandbox.CodeInternal, Message: "the record could not be read or written",
		Remedy: "see the log of space control", Err: err}
}

func invalid(field, message string) *sandbox.Error {
	return &sandbox.Error{Code: sandbox.CodeInvalidArgument, Message: "the request is not valid",
		Cause: field + " " + message, Fields: []sandbox.FieldError{{Field: field, Message: message}}}
}

func noSandbox(ref string) *sandbox.Error {
	return &sandbox.Error{Code: sandbox.CodeNotFound, Message: "there is no such sandbox", Cause: fmt.Sprintf("%q", ref),
		Remedy: "GET /v1/sandboxes lists them"}
}

func noCommand(id sandbox.CommandID) *sandbox.Error {
	return &sandbox.Error{Code: sandbox.CodeNotFound, Message: "there is no such command session", Cause: string(id),
		Remedy: "sessions are deleted together with their sandbox"}
}

// superseded is the cause with which a delete ends the operation under way.
func superseded() *sandbox.Error {
	return &sandbox.Error{Code: sandbox.CodeCanceled, Message: "the operation was canceled", Cause: "the sandbox is being deleted"}
}

// notIn says that what (not a verb of the lifecycle) is not possible in the state box is in, and what would help.
func notIn(box sandbox.Sandbox, what string) *sandbox.Error {
	e := &sandbox.Error{Code: sandbox.CodeInvalidState, Message: what + " needs a running sandbox", Cause: box.Condition(),
		SandboxID: box.ID, OperationID: box.OperationID}
	switch {
	case box.State == sandbox.StateCreating:
		e.Remedy = fmt.Sprintf("wait for its create: GET /v1/operations/%s?wait=60s", box.OperationID)
	case box.State == sandbox.StateResuming:
		e.Remedy = fmt.Sprintf("wait until it runs: GET /v1/operations/%s?wait=60s", box.OperationID)
	case box.State == sandbox.StatePaused && box.Reason == sandbox.ReasonPoolFull:
		e.Remedy = "it goes on by itself when the pool has room: delete sandboxes, or free space on the host"
	case box.State == sandbox.StatePaused, box.State == sandbox.StatePausing:
		e.Remedy = box.Advice(sandbox.VerbResume)
	case box.State == sandbox.StateFailed && box.KeepsDisk():
		e.Remedy = box.Advice(sandbox.VerbRecover)
	case box.State == sandbox.StateFailed:
		e.Remedy = box.Advice(sandbox.VerbDelete)
	default:
		e.Remedy = "create another sandbox"
	}
	return e
}

// mustRun refuses what needs the guest of a sandbox that does not run.
func (c *Control) mustRun(ctx context.Context, id sandbox.ID, what string) error {
	box, err := c.Store.Sandbox(ctx, id)
	if err != nil {
		return storeError(err)
	}
	if box.State != sandbox.StateRunning {
		return notIn(box, what)
	}
	return nil
}
