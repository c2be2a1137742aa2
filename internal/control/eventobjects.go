package control

import (
	"encoding/json"
	"fmt"
	"strings"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/wire"
)

// Bounds of what an event keeps of a thing. What is cut off says so, and can be looked up.
const (
	maxEventText     = 1024 // bytes of one text
	maxEventNote     = 128  // bytes of one of many texts
	maxEventMetadata = 2048 // bytes of all labels
	maxEventArgv     = 2048 // bytes of all arguments
	maxEventSteps    = 32   // and fields of an error
)

// cutMark says that something of an object was left out.
type cutMark struct {
	Truncated bool `json:"truncated,omitempty"`
}

// text shortens s to n bytes if need be.
func (m *cutMark) text(s string, n int) string {
	if len(s) > n {
		m.Truncated = true
		return strings.ToValidUTF8(s[:n], "")
	}
	return s
}

func encoded(v any) ([]byte, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("an event's object: %w", err)
	}
	return raw, nil
}

func sandboxObject(box sandbox.Sandbox, dataPlane string) ([]byte, error) {
	out := struct {
		apiv1.Sandbox
		cutMark
	}{Sandbox: wire.Sandbox(box, dataPlane)}
	out.ReasonDetail = out.text(out.ReasonDetail, maxEventText)
	size := 0
	for k, v := range out.Metadata {
		size += len(k) + len(v)
	}
	if size > maxEventMetadata {
		out.Metadata, out.Truncated = map[string]string{}, true
	}
	return encoded(out)
}

func operationObject(op operation.Operation) ([]byte, error) {
	out := struct {
		apiv1.Operation
		cutMark
	}{Operation: wire.Operation(op)}
	if n := len(out.Steps); n > maxEventSteps {
		out.Steps, out.Truncated = out.Steps[n-maxEventSteps:], true
	}
	for i := range out.Steps {
		out.Steps[i].Error = out.text(out.Steps[i].Error, maxEventNote)
	}
	if e := out.Error; e != nil {
		e.Message, e.Cause, e.Remedy = out.text(e.Message, maxEventText), out.text(e.Cause, maxEventText), out.text(e.Remedy, maxEventText)
		if len(e.Fields) > maxEventSteps {
			e.Fields, out.Truncated = e.Fields[:maxEventSteps], true
		}
		for i := range e.Fields {
			e.Fields[i].Field, e.Fields[i].Message = out.text(e.Fields[i].Field, maxEventNote), out.text(e.Fields[i].Message, maxEventNote)
		}
	}
	return encoded(out)
}

// commandObject leaves the environment out: its values may be secrets, and events are read by others than who gave them.
func commandObject(cmd sandbox.Command) ([]byte, error) {
	cmd.Spec.Env = nil
	out := struct {
		apiv1.Command
		cutMark
	}{Command: wire.Command(cmd)}
	size := 0
	for i, arg := range out.Argv {
		if size += len(arg) + 1; size > maxEventArgv {
			out.Argv, out.Truncated = out.Argv[:i], true
			break
		}
	}
	out.Cwd = out.text(out.Cwd, maxEventText)
	if out.Error != nil {
		out.Error.Message = out.text(out.Error.Message, maxEventText)
	}
	return encoded(out)
}

// templateObject shows a template under its first name; gone: it cannot be used any more.
func templateObject(tpl sandbox.Template, gone bool) ([]byte, error) {
	name := ""
	if len(tpl.Names) > 0 {
		name, _ = wire.SplitTag(tpl.Names[0])
	}
	tpl.Env, tpl.Entrypoint = nil, nil
	out := wire.Template(tpl, name)
	if gone {
		out.State = "deleted"
	}
	return encoded(out)
}

// What happened to a lease.
const (
	changeSet     = "set"
	changeRemoved = "removed"
	changeExpired = "expired"
)

func leaseObject(l *sandbox.Lease, change string) ([]byte, error) {
	return encoded(apiv1.LeaseChange{Change: change, Lease: wire.Lease(l)})
}

// leaseChange says what a call has done to a lease, "" when nothing.
func leaseChange(old, now *sandbox.Lease) string {
	switch {
	case old == nil && now == nil, old != nil && now != nil && *old == *now:
		return ""
	case now == nil:
		return changeRemoved
	case old != nil && !old.ExpiresAt.IsZero() && now.ExpiresAt.IsZero() && now.Remaining == 0:
		return changeExpired
	}
	return changeSet
}
