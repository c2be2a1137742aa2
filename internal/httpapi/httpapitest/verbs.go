package httpapitest

import (
	"context"

	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
)

// PauseSandbox pauses at once.
func (f *Fake) PauseSandbox(_ context.Context, call control.Call, ref string) (control.Accepted, error) {
	return f.verb(call, ref, sandbox.VerbPause)
}

// ResumeSandbox resumes at once.
func (f *Fake) ResumeSandbox(_ context.Context, call control.Call, ref string) (control.Accepted, error) {
	return f.verb(call, ref, sandbox.VerbResume)
}

// RecoverSandbox recovers at once what Fail has failed.
func (f *Fake) RecoverSandbox(_ context.Context, call control.Call, ref string) (control.Accepted, error) {
	return f.verb(call, ref, sandbox.VerbRecover)
}

func (f *Fake) verb(call control.Call, ref string, verb sandbox.Verb) (control.Accepted, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if id, err := f.replay(call); err != nil || id != "" {
		return f.acceptedBefore(id), err
	}
	box := f.find(ref)
	if box == nil {
		return control.Accepted{}, noSandbox(ref)
	}
	rule := verb.On(*box).Rule
	switch {
	case call.IfState != "" && call.IfState != box.State:
		return control.Accepted{}, &sandbox.Error{Code: sandbox.CodeStateMismatch, Message: "the sandbox is in another state", Cause: string(box.State)}
	case call.IfBusyFail && box.OperationID != "":
		return control.Accepted{}, &sandbox.Error{Code: sandbox.CodeSandboxBusy, Message: "a transition is under way"}
	case rule != sandbox.Moves && rule != sandbox.Already:
		return control.Accepted{}, box.Refuse(verb)
	}
	op := f.begin(string(verb), box)
	f.remember(call, string(op.ID))
	if rule == sandbox.Already {
		op.NoChange = true
	} else {
		box.State, box.DesiredState = verb.Way().Via, verb.Way().End
	}
	acc := control.Accepted{Operation: *op, Sandbox: box.Clone()}
	f.end(op, nil)
	if rule == sandbox.Already {
		acc = control.Accepted{Operation: *op, Sandbox: box.Clone()}
	}
	return acc, nil
}

// Fail makes a sandbox one whose machine has ended.
func (f *Fake) Fail(ref string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if box := f.find(ref); box != nil {
		box.State, box.Reason = sandbox.StateFailed, sandbox.ReasonVMMExit
		f.notify()
	}
}

// moved is where a verb leads its sandbox.
func moved(op *operation.Operation) sandbox.State { return sandbox.Verb(op.Kind).Way().End }
