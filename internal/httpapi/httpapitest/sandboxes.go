package httpapitest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
)

func digest(name string) string {
	sum := sha256.Sum256([]byte(name))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// CreateSandbox makes a record; what becomes of it depends on the template.
func (f *Fake) CreateSandbox(ctx context.Context, call control.Call, spec sandbox.Spec) (control.Accepted, error) {
	t, err := f.GetTemplate(ctx, spec.Template)
	if err != nil {
		return control.Accepted{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if id, err := f.replay(call); err != nil || id != "" {
		return f.acceptedBefore(id), err
	}
	if f.draining {
		return control.Accepted{}, &sandbox.Error{Code: sandbox.CodeDraining, Message: "no new work is taken", RetryAfter: 30 * time.Second}
	}
	if spec.Name != "" && f.find(spec.Name) != nil {
		return control.Accepted{}, &sandbox.Error{Code: sandbox.CodeNameTaken, Message: "a live sandbox has this name", Cause: spec.Name, Remedy: "choose another name"}
	}
	now := f.tick()
	box := &sandbox.Sandbox{ID: sandbox.NewID(), Name: spec.Name, State: sandbox.StateCreating, DesiredState: sandbox.StateRunning,
		Template: sandbox.TemplateRef{Ref: t.Names[0], Digest: t.Digest}, Driver: "fake", Isolation: "none",
		VCPUs: spec.VCPUs, MemoryMiB: spec.MemoryMiB, DiskMiB: spec.DiskMiB, Env: spec.Env, Metadata: spec.Metadata,
		Owner: call.Principal.KeyID, CreatedAt: now}
	if spec.Lease != nil {
		box.Lease = &sandbox.Lease{TTL: spec.Lease.TTL, OnExpiry: spec.Lease.OnExpiry, Remaining: spec.Lease.TTL}
	}
	f.sandboxes[box.ID] = box
	op := f.begin("create", box)
	f.remember(call, string(op.ID))
	acc := control.Accepted{Operation: *op, Sandbox: box.Clone()}
	switch t.Digest {
	case digest(TemplateSlow):
	case digest(TemplateBroken):
		f.end(op, &sandbox.Error{Code: sandbox.CodeVMMFailed, Message: "the machine did not start", Cause: "exit status 1", Remedy: "see space doctor"})
	default:
		f.end(op, nil)
	}
	return acc, nil
}

// begin makes an operation that runs.
func (f *Fake) begin(kind string, box *sandbox.Sandbox) *operation.Operation {
	now := f.tick()
	op := &operation.Operation{ID: sandbox.NewOperationID(), Kind: kind, Resource: operation.Resource{Type: "sandbox", ID: string(box.ID)},
		State: operation.Running, Attempt: 1, CreatedAt: now, StartedAt: now, Steps: []operation.Step{{Name: "boot", State: operation.Running, StartedAt: now}}}
	f.operations[op.ID] = op
	f.order = append(f.order, op.ID)
	box.OperationID = op.ID
	f.notify()
	return op
}

// end finishes an operation and moves its sandbox.
func (f *Fake) end(op *operation.Operation, failure *sandbox.Error) {
	now := f.tick()
	op.State, op.EndedAt = operation.Succeeded, now
	if failure != nil {
		op.State, op.Error = operation.Failed, failure
		if failure.Code == sandbox.CodeCanceled {
			op.State = operation.Canceled
		}
	}
	step := op.Steps[0]
	step.State, step.EndedAt = op.State, now
	op.Steps = []operation.Step{step} // a new list: copies of the operation have the old one
	box := f.sandboxes[sandbox.ID(op.Resource.ID)]
	if box == nil { // of an import
		f.notify()
		return
	}
	box.OperationID = ""
	switch {
	case failure != nil:
		box.State, box.Reason = sandbox.StateFailed, sandbox.ReasonCreateFailed
	case op.Kind == "delete":
		box.State, box.DesiredState, box.DeletedAt = sandbox.StateDeleted, sandbox.StateDeleted, now
	case op.Kind == "create":
		box.State, box.ReadyAt = sandbox.StateRunning, now
	default:
		box.State, box.Reason = moved(op), ""
	}
	f.notify()
}

// Finish ends every operation that runs with success.
func (f *Fake) Finish() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, op := range f.operations {
		if !op.State.Ended() {
			f.end(op, nil)
		}
	}
}

func (f *Fake) acceptedBefore(id string) control.Accepted {
	op, ok := f.operations[sandbox.OperationID(id)]
	if !ok {
		return control.Accepted{}
	}
	acc := control.Accepted{Operation: *op, Replayed: true}
	if box := f.sandboxes[sandbox.ID(op.Resource.ID)]; box != nil {
		acc.Sandbox = box.Clone()
	}
	return acc
}

// find returns a live sandbox, nil when there is none.
func (f *Fake) find(ref string) *sandbox.Sandbox {
	for _, box := range f.sandboxes {
		if box.Live() && (string(box.ID) == ref || box.Name != "" && box.Name == ref) {
			return box
		}
	}
	return nil
}

func noSandbox(ref string) error {
	return &sandbox.Error{Code: sandbox.CodeNotFound, Message: "there is no such sandbox", Cause: ref, Remedy: "GET /v1/sandboxes lists them"}
}

// GetSandbox finds a live sandbox.
func (f *Fake) GetSandbox(_ context.Context, ref string) (sandbox.Sandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if box := f.find(ref); box != nil {
		return box.Clone(), nil
	}
	return sandbox.Sandbox{}, noSandbox(ref)
}

// ListSandboxes filters by everything the filter has.
func (f *Fake) ListSandboxes(_ context.Context, filter control.SandboxFilter) (control.Page[sandbox.Sandbox], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var items []sandbox.Sandbox
	for _, box := range f.sandboxes {
		match := box.Live() || slices.Contains(filter.States, box.State)
		if len(filter.States) > 0 {
			match = slices.Contains(filter.States, box.State)
		}
		if filter.Template != "" && filter.Template != box.Template.Ref && filter.Template != box.Template.Digest {
			match = false
		}
		if !box.CreatedAt.After(filter.CreatedAfter) || filter.ID != "" && filter.ID != box.ID {
			match = false
		}
		for k, v := range filter.Metadata {
			match = match && box.Metadata[k] == v
		}
		if match {
			items = append(items, box.Clone())
		}
	}
	return page(items, filter.PageRequest, func(b sandbox.Sandbox) string { return string(b.ID) }, func(b sandbox.Sandbox) time.Time { return b.CreatedAt })
}

// PatchSandbox changes name and metadata.
func (f *Fake) PatchSandbox(_ context.Context, ref string, patch control.SandboxPatch) (sandbox.Sandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	box := f.find(ref)
	if box == nil {
		return sandbox.Sandbox{}, noSandbox(ref)
	}
	if patch.Name != nil {
		if other := f.find(*patch.Name); other != nil && other != box {
			return sandbox.Sandbox{}, sandbox.Errorf(sandbox.CodeNameTaken, "a live sandbox has this name")
		}
		box.Name = *patch.Name
	}
	if patch.Metadata != nil {
		box.Metadata = maps.Clone(patch.Metadata)
	}
	if patch.Lease != nil {
		box.Lease = f.patched(box.Lease, *patch.Lease)
	}
	return box.Clone(), nil
}

// patched applies a patch to a lease.
func (f *Fake) patched(lease *sandbox.Lease, p control.LeasePatch) *sandbox.Lease {
	if p.Remove {
		return nil
	}
	next := &sandbox.Lease{TTL: p.TTL, OnExpiry: sandbox.ExpireDelete, Remaining: p.TTL}
	if lease != nil {
		next.OnExpiry = lease.OnExpiry
		if p.Extend {
			next.TTL, next.Remaining = lease.TTL, lease.Left(f.now)+p.TTL
		}
	}
	if p.OnExpiry != "" {
		next.OnExpiry = p.OnExpiry
	}
	next.Start(f.now)
	return next
}

// DeleteSandbox deletes at once; one whose name begins with "sticky" stays in deleting until Finish.
func (f *Fake) DeleteSandbox(_ context.Context, call control.Call, ref string) (control.Accepted, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if id, err := f.replay(call); err != nil || id != "" {
		return f.acceptedBefore(id), err
	}
	box := f.find(ref)
	switch {
	case box == nil:
		return control.Accepted{}, noSandbox(ref)
	case box.State == sandbox.StateDeleting:
		return control.Accepted{Operation: *f.operations[box.OperationID], Sandbox: box.Clone()}, nil
	case call.IfState != "" && call.IfState != box.State:
		return control.Accepted{}, &sandbox.Error{Code: sandbox.CodeStateMismatch, Message: "the sandbox is in another state", Cause: string(box.State)}
	case call.IfBusyFail && box.OperationID != "":
		return control.Accepted{}, &sandbox.Error{Code: sandbox.CodeSandboxBusy, Message: "a transition is under way"}
	}
	box.State, box.DesiredState = sandbox.StateDeleting, sandbox.StateDeleted
	op := f.begin("delete", box)
	f.remember(call, string(op.ID))
	acc := control.Accepted{Operation: *op, Sandbox: box.Clone()}
	if !strings.HasPrefix(box.Name, "sticky") {
		f.end(op, nil)
	}
	return acc, nil
}

// GetOperation waits for the end of an operation.
func (f *Fake) GetOperation(ctx context.Context, id sandbox.OperationID, wait time.Duration) (operation.Operation, error) {
	f.await(ctx, wait, func() bool { return f.operations[id] == nil || f.operations[id].State.Ended() })
	f.mu.Lock()
	defer f.mu.Unlock()
	if op := f.operations[id]; op != nil {
		return *op, nil
	}
	return operation.Operation{}, &sandbox.Error{Code: sandbox.CodeNotFound, Message: "there is no such operation", Cause: string(id)}
}

// ListOperations lists those that the filter selects.
func (f *Fake) ListOperations(_ context.Context, filter control.OperationFilter) (control.Page[operation.Operation], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var items []operation.Operation
	for _, id := range f.order {
		if op := *f.operations[id]; (len(filter.States) == 0 || slices.Contains(filter.States, op.State)) && op.CreatedAt.After(filter.CreatedAfter) &&
			(filter.ResourceID == "" || filter.ResourceID == op.Resource.ID) {
			items = append(items, op)
		}
	}
	return page(items, filter.PageRequest, func(o operation.Operation) string { return string(o.ID) }, func(o operation.Operation) time.Time { return o.CreatedAt })
}

// CancelOperation ends one that runs.
func (f *Fake) CancelOperation(ctx context.Context, id sandbox.OperationID) (operation.Operation, error) {
	f.mu.Lock()
	if op := f.operations[id]; op != nil && !op.State.Ended() {
		f.end(op, &sandbox.Error{Code: sandbox.CodeCanceled, Message: "the operation was canceled"})
	}
	f.mu.Unlock()
	return f.GetOperation(ctx, id, 0)
}
