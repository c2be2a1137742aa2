package client

import (
	"context"
	"net/http"
	"time"

	apiv1 "github.com/space-sandbox/space/api/v1"
)

// CreateSandbox accepts the creation of a sandbox. With Wait it returns when the sandbox is ready, or with the error
// that kept it from becoming so. It takes Wait and IdempotencyKey.
func (c *Client) CreateSandbox(ctx context.Context, in apiv1.CreateSandbox, opts ...Option) (*apiv1.Lifecycle, error) {
	return do[apiv1.Lifecycle](ctx, c, call{method: http.MethodPost, path: join("sandboxes"), in: in}.with(opts))
}

// Sandbox returns a sandbox by id or name.
func (c *Client) Sandbox(ctx context.Context, ref string) (*apiv1.Sandbox, error) {
	return do[apiv1.Sandbox](ctx, c, call{method: http.MethodGet, path: join("sandboxes", ref)})
}

// SandboxQuery selects sandboxes; deleted ones only when States names them.
type SandboxQuery struct {
	Page
	States       []string
	CreatedAfter time.Time
	Template     string // reference or digest, as the sandbox shows it
	Metadata     map[string]string
}

// ListSandboxes returns one part of the list of sandboxes, newest first.
func (c *Client) ListSandboxes(ctx context.Context, query SandboxQuery) (*apiv1.List[apiv1.Sandbox], error) {
	q := query.values()
	setList(q, "state", query.States)
	if !query.CreatedAfter.IsZero() {
		q.Set("created_after", query.CreatedAfter.UTC().Format(time.RFC3339Nano))
	}
	if query.Template != "" {
		q.Set("template", query.Template)
	}
	for k, v := range query.Metadata {
		q.Set("metadata."+k, v)
	}
	return do[apiv1.List[apiv1.Sandbox]](ctx, c, call{method: http.MethodGet, path: join("sandboxes"), query: q})
}

// SetLease begins a sandbox's lease anew, or adds to it with mode extend.
func (c *Client) SetLease(ctx context.Context, ref string, lease apiv1.PatchLease) (*apiv1.Sandbox, error) {
	return c.PatchSandbox(ctx, ref, apiv1.PatchSandbox{Lease: &lease})
}

// RemoveLease lets a sandbox run for ever.
func (c *Client) RemoveLease(ctx context.Context, ref string) (*apiv1.Sandbox, error) {
	return do[apiv1.Sandbox](ctx, c, call{method: http.MethodPatch, path: join("sandboxes", ref), in: map[string]any{"lease": nil}})
}

// PatchSandbox changes name, metadata and lease: what is nil stays; an empty name removes the name.
func (c *Client) PatchSandbox(ctx context.Context, ref string, in apiv1.PatchSandbox) (*apiv1.Sandbox, error) {
	return do[apiv1.Sandbox](ctx, c, call{method: http.MethodPatch, path: join("sandboxes", ref), in: in})
}

// DeleteSandbox accepts the deletion of a sandbox, in whatever state it is. It takes every Option.
func (c *Client) DeleteSandbox(ctx context.Context, ref string, opts ...Option) (*apiv1.Lifecycle, error) {
	return do[apiv1.Lifecycle](ctx, c, call{method: http.MethodDelete, path: join("sandboxes", ref)}.with(opts))
}

// PauseSandbox accepts a pause: the sandbox's vCPUs stop, its memory stays. It takes every Option, and so do Resume and
// Recover. One that is paused already is left so; the operation says no_change.
func (c *Client) PauseSandbox(ctx context.Context, ref string, opts ...Option) (*apiv1.Lifecycle, error) {
	return c.verb(ctx, ref, "pause", opts)
}

// ResumeSandbox accepts a resume: a paused sandbox goes on where it stood.
func (c *Client) ResumeSandbox(ctx context.Context, ref string, opts ...Option) (*apiv1.Lifecycle, error) {
	return c.verb(ctx, ref, "resume", opts)
}

// RecoverSandbox accepts a recovery: a failed sandbox boots anew on its disk.
func (c *Client) RecoverSandbox(ctx context.Context, ref string, opts ...Option) (*apiv1.Lifecycle, error) {
	return c.verb(ctx, ref, "recover", opts)
}

func (c *Client) verb(ctx context.Context, ref, verb string, opts []Option) (*apiv1.Lifecycle, error) {
	return do[apiv1.Lifecycle](ctx, c, call{method: http.MethodPost, path: join("sandboxes", ref, verb)}.with(opts))
}
