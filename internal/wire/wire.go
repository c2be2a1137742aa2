// Package wire shows the records of the domain as API v1 does: in the answers to calls and in events.
package wire

import (
	"strings"
	"time"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/problem"
	"github.com/space-sandbox/space/internal/sandbox"
)

// optional returns nil for the zero value, else a pointer to v.
func optional[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// timeOrNull returns nil for the zero time.
func timeOrNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// listNotNil returns an empty list for nil, which JSON would show as null.
func listNotNil(v []string) []string {
	if v == nil {
		return []string{}
	}
	return v
}

func mapNotNil(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

// Sandbox shows b; dataPlane is the base URL of the data plane.
func Sandbox(b sandbox.Sandbox, dataPlane string) apiv1.Sandbox {
	return apiv1.Sandbox{
		ID: string(b.ID), Name: b.Name, State: string(b.State), DesiredState: string(b.DesiredState),
		Reason: optional(b.Reason), ReasonDetail: b.Detail,
		Template: apiv1.TemplateRef{Ref: b.Template.Ref, Digest: b.Template.Digest},
		Driver:   b.Driver, Isolation: b.Isolation, VCPUs: b.VCPUs, MemoryMiB: b.MemoryMiB, DiskMiB: b.DiskMiB,
		CreatedAt: b.CreatedAt.UTC(), ReadyAt: timeOrNull(b.ReadyAt), Metadata: mapNotNil(b.Metadata),
		Endpoints: apiv1.Endpoints{DataPlane: dataPlane}, OperationID: string(b.OperationID),
		Lease: Lease(b.Lease),
	}
}

// Operation shows o, without a result.
func Operation(o operation.Operation) apiv1.Operation {
	out := apiv1.Operation{
		ID: string(o.ID), Kind: o.Kind, Resource: apiv1.Resource{Type: o.Resource.Type, ID: o.Resource.ID},
		State: string(o.State), NoChange: o.NoChange, Attempt: o.Attempt,
		CreatedAt: o.CreatedAt.UTC(), StartedAt: timeOrNull(o.StartedAt), EndedAt: timeOrNull(o.EndedAt), Steps: []apiv1.Step{},
	}
	for _, step := range o.Steps {
		out.Steps = append(out.Steps, stepWire(step))
	}
	if o.Error != nil {
		out.Error = &problem.From(o.Error, ProblemOptions(o)).Problem
	}
	return out
}

func stepWire(step operation.Step) apiv1.Step {
	out := apiv1.Step{Name: step.Name, State: string(step.State), Error: step.Error, Attempts: step.Attempts,
		StartedAt: timeOrNull(step.StartedAt), EndedAt: timeOrNull(step.EndedAt)}
	if !step.StartedAt.IsZero() && !step.EndedAt.IsZero() {
		ms := float64(step.EndedAt.Sub(step.StartedAt).Microseconds()) / 1000
		out.MS = &ms
	}
	return out
}

// resourceSandbox is the type of an operation's resource that is a sandbox.
const resourceSandbox = "sandbox"

// ProblemOptions names the operation, and its sandbox, in an error.
func ProblemOptions(o operation.Operation) problem.Options {
	opts := problem.Options{OperationID: string(o.ID)}
	if o.Resource.Type == resourceSandbox {
		opts.SandboxID = o.Resource.ID
	}
	return opts
}

// Command shows c.
func Command(c sandbox.Command) apiv1.Command {
	out := apiv1.Command{
		ID: string(c.ID), SandboxID: string(c.SandboxID), ProcessID: string(c.ProcessID), State: string(c.State),
		Reason: optional(c.Reason), Argv: listNotNil(c.Spec.Argv), Env: mapNotNil(c.Spec.Env), Cwd: c.Spec.Cwd,
		User: c.Spec.User, Stdin: c.Spec.Stdin, TimeoutSeconds: c.Spec.TimeoutSeconds, Tag: c.Spec.Tag, Record: c.Spec.Record,
		PID: optional(c.PID), ExitCode: c.ExitCode, Signal: optional(c.Signal),
		CreatedAt: c.CreatedAt.UTC(), StartedAt: timeOrNull(c.StartedAt), EndedAt: timeOrNull(c.EndedAt),
		StdoutBytes: c.StdoutBytes, StderrBytes: c.StderrBytes, PTYBytes: c.PTYBytes, StdinBytes: c.StdinBytes,
		TruncatedBytes: c.Truncated, Epoch: c.Epoch,
	}
	if c.Spec.PTY != nil {
		out.PTY = &apiv1.PTY{Cols: int(c.Spec.PTY.Cols), Rows: int(c.Spec.PTY.Rows)}
	}
	if c.ErrorCode != "" {
		out.Error = &apiv1.CommandError{Code: c.ErrorCode, Message: c.ErrorMessage}
	}
	return out
}

// Lease shows a lease; nil: there is none.
func Lease(l *sandbox.Lease) *apiv1.Lease {
	if l == nil {
		return nil
	}
	out := &apiv1.Lease{TTLSeconds: l.TTL.Seconds(), OnExpiry: string(l.OnExpiry), ExpiresAt: timeOrNull(l.ExpiresAt)}
	if out.ExpiresAt == nil {
		left := l.Remaining.Seconds()
		out.RemainingSeconds = &left
	}
	return out
}

// Template shows a template under one of its names, with the tags that name has.
func Template(t sandbox.Template, name string) apiv1.Template {
	out := apiv1.Template{
		Name: name, Tags: []string{}, Digest: t.Digest, State: "ready", SizeBytes: t.SizeBytes, MinDiskMiB: t.MinDiskMiB,
		Env: mapNotNil(t.Env), User: t.User, Workdir: t.Workdir, Entrypoint: listNotNil(t.Entrypoint), CreatedAt: t.CreatedAt.UTC(),
	}
	if out.User == "" {
		out.User = "root"
	}
	for _, full := range t.Names {
		if base, tag := SplitTag(full); base == name {
			out.Tags = append(out.Tags, tag)
		}
	}
	return out
}

// SplitTag splits "ns/base:latest" at its tag.
func SplitTag(full string) (name, tag string) {
	i := strings.LastIndexByte(full, ':')
	if i < 0 || strings.Contains(full[i:], "/") {
		return full, ""
	}
	return full[:i], full[i+1:]
}
