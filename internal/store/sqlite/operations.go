package sqlite

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
)

const operationColumns = `id, kind, resource_type, resource_id, state, no_change, attempt, created_at, started_at,
	ended_at, steps, error, input`

// storedStep is the stored form of operation.Step.
type storedStep struct {
	Name     string          `json:"name"`
	State    operation.State `json:"state"`
	Started  int64           `json:"started"`
	Ended    int64           `json:"ended,omitempty"`
	Error    string          `json:"error,omitempty"`
	Attempts int             `json:"attempts,omitempty"`
}

// storedError is the stored form of sandbox.Error. What it wraps is for logs and is not kept.
type storedError struct {
	Code    sandbox.Code  `json:"code"`
	Message string        `json:"message"`
	Cause   string        `json:"cause,omitempty"`
	Remedy  string        `json:"remedy,omitempty"`
	Fields  []storedField `json:"fields,omitempty"`
}

type storedField struct {
	Field   string `json:"field"`
	Message string `json:"message"`
}

func stepsText(steps []operation.Step) (string, error) {
	out := make([]storedStep, len(steps))
	for i, s := range steps {
		out[i] = storedStep{s.Name, s.State, nanos(s.StartedAt), nanos(s.EndedAt), s.Error, s.Attempts}
	}
	return text(out)
}

func errorText(e *sandbox.Error) (string, error) {
	if e == nil {
		return "", nil
	}
	out := storedError{Code: e.Code, Message: e.Message, Cause: e.Cause, Remedy: e.Remedy}
	for _, f := range e.Fields {
		out.Fields = append(out.Fields, storedField(f))
	}
	return text(out)
}

func parseSteps(stored []storedStep) []operation.Step {
	var out []operation.Step
	for _, s := range stored {
		out = append(out, operation.Step{Name: s.Name, State: s.State, StartedAt: fromNanos(s.Started),
			EndedAt: fromNanos(s.Ended), Error: s.Error, Attempts: s.Attempts})
	}
	return out
}

func parseError(s string) (*sandbox.Error, error) {
	if s == "" {
		return nil, nil
	}
	var in storedError
	if err := json.Unmarshal([]byte(s), &in); err != nil {
		return nil, fmt.Errorf("error column: %w", err)
	}
	e := &sandbox.Error{Code: in.Code, Message: in.Message, Cause: in.Cause, Remedy: in.Remedy}
	for _, f := range in.Fields {
		e.Fields = append(e.Fields, sandbox.FieldError(f))
	}
	return e, nil
}

func fromNanos(n int64) (t time.Time) {
	if n != 0 {
		t = time.Unix(0, n).UTC()
	}
	return t
}

func scanOperation(row scanner) (operation.Operation, error) {
	var op operation.Operation
	var steps []storedStep
	var problem string
	err := row.Scan(&op.ID, &op.Kind, &op.Resource.Type, &op.Resource.ID, &op.State, &op.NoChange, &op.Attempt,
		stamp{&op.CreatedAt}, stamp{&op.StartedAt}, stamp{&op.EndedAt}, document{&steps}, &problem, &op.Input)
	if err != nil {
		return op, err
	}
	op.Steps = parseSteps(steps)
	op.Error, err = parseError(problem)
	return op, err
}

// operationValues are the columns but id.
func operationValues(op operation.Operation) ([]any, error) {
	steps, err := stepsText(op.Steps)
	if err != nil {
		return nil, err
	}
	problem, err := errorText(op.Error)
	if err != nil {
		return nil, err
	}
	return []any{op.Kind, op.Resource.Type, op.Resource.ID, op.State, op.NoChange, op.Attempt,
		nanos(op.CreatedAt), nanos(op.StartedAt), nanos(op.EndedAt), steps, problem, op.Input}, nil
}

var operationList = list[operation.Operation]{table: "operations", columns: operationColumns, scan: scanOperation,
	position: func(o operation.Operation) store.Position {
		return store.Position{CreatedAt: o.CreatedAt, ID: string(o.ID)}
	}}

// Operation implements store.Reader.
func (r reader) Operation(ctx context.Context, id sandbox.OperationID) (operation.Operation, error) {
	return one(ctx, r.q, scanOperation, "SELECT "+operationColumns+" FROM operations WHERE id = ?", id)
}

// Operations implements store.Reader.
func (r reader) Operations(ctx context.Context, f store.OperationFilter) (store.Page[operation.Operation], error) {
	var sel selection
	if len(f.States) > 0 {
		in(&sel, "state", f.States)
	}
	if f.ResourceID != "" {
		sel.where("resource_id = ?", f.ResourceID)
	}
	if !f.CreatedAfter.IsZero() {
		sel.where("created_at > ?", nanos(f.CreatedAfter))
	}
	return operationList.page(ctx, r.q, sel, f.PageRequest)
}

// UnfinishedOperations implements store.Reader.
func (r reader) UnfinishedOperations(ctx context.Context) ([]operation.Operation, error) {
	return collect(ctx, r.q, scanOperation, "SELECT "+operationColumns+
		" FROM operations WHERE state IN ('queued', 'running') ORDER BY created_at, id")
}

// OpenOperations implements store.Reader.
func (r reader) OpenOperations(ctx context.Context, resource operation.Resource) ([]operation.Operation, error) {
	return collect(ctx, r.q, scanOperation, "SELECT "+operationColumns+` FROM operations
		WHERE resource_id = ? AND resource_type = ? AND state IN ('queued', 'running') ORDER BY accepted, created_at, id`,
		resource.ID, resource.Type)
}

// InsertOperation implements store.Tx.
func (t *tx) InsertOperation(op operation.Operation) error {
	values, err := operationValues(op)
	if err != nil {
		return err
	}
	return t.exec(nil, "INSERT INTO operations ("+operationColumns+`, accepted) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?, 1 +
		(SELECT COALESCE(MAX(accepted), 0) FROM operations WHERE resource_id = ? AND state IN ('queued', 'running')))`,
		append(append([]any{op.ID}, values...), op.Resource.ID)...)
}

// UpdateOperation implements store.Tx.
func (t *tx) UpdateOperation(op operation.Operation) error {
	values, err := operationValues(op)
	if err != nil {
		return err
	}
	const resource, createdAt = 3, 6 // an index is rewritten for each of its columns that is set, also to what it was
	values = append(values[resource:createdAt:createdAt], values[createdAt+1:]...)
	return t.exec(store.ErrConflict, `UPDATE operations SET state=?, no_change=?, attempt=?, started_at=?, ended_at=?,
		steps=?, error=?, input=? WHERE id=? AND state IN ('queued', 'running')`, append(values, op.ID)...)
}
