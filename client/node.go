package client

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"

	apiv1 "github.com/space-sandbox/space/api/v1"
)

// ListTemplates returns one part of the list of templates, newest first.
func (c *Client) ListTemplates(ctx context.Context, page Page) (*apiv1.List[apiv1.Template], error) {
	return do[apiv1.List[apiv1.Template]](ctx, c, call{method: http.MethodGet, path: join("templates"), query: page.values()})
}

// Template returns a template by name, name:tag or digest.
func (c *Client) Template(ctx context.Context, ref string) (*apiv1.Template, error) {
	return do[apiv1.Template](ctx, c, call{method: http.MethodGet, path: join("templates", ref)})
}

// ImportImage accepts the import of an image from a registry. With Wait it returns when the template is there, or with
// the error that kept it from being made. It takes Wait and IdempotencyKey.
func (c *Client) ImportImage(ctx context.Context, in apiv1.ImportTemplate, opts ...Option) (*apiv1.TemplateLifecycle, error) {
	return do[apiv1.TemplateLifecycle](ctx, c, call{method: http.MethodPost, path: join("templates"), in: in}.with(opts))
}

// ImportArchive accepts the import of an image as an archive, which is not compressed: an OCI layout, or what docker
// save writes. It returns when all of it has been sent; size is -1 when it is not known. It takes Wait and IdempotencyKey.
func (c *Client) ImportArchive(ctx context.Context, name string, archive io.Reader, size int64, opts ...Option) (*apiv1.TemplateLifecycle, error) {
	return do[apiv1.TemplateLifecycle](ctx, c, call{method: http.MethodPost, path: join("templates"), query: url.Values{"name": {name}},
		header: http.Header{"Content-Type": {"application/x-tar"}}, body: archive, size: size}.with(opts))
}

// DeleteTemplate takes a name away, or removes the content when that was its last name or ref is a digest. It fails with
// template_in_use while a live sandbox was made from the content.
func (c *Client) DeleteTemplate(ctx context.Context, ref string) error {
	resp, err := c.send(ctx, call{method: http.MethodDelete, path: join("templates", ref)})
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// Node describes the machine SPACE runs on; it needs an admin key.
func (c *Client) Node(ctx context.Context) (*apiv1.Node, error) {
	return do[apiv1.Node](ctx, c, call{method: http.MethodGet, path: join("node")})
}

// Ledger compares what SPACE should have on the machine with what is there; it needs an admin key.
func (c *Client) Ledger(ctx context.Context) (*apiv1.Ledger, error) {
	return do[apiv1.Ledger](ctx, c, call{method: http.MethodGet, path: join("node", "ledger")})
}

// Reconcile removes what belongs to no sandbox, and says what it did; with DryRun, what it would do. It needs an admin key.
func (c *Client) Reconcile(ctx context.Context, in apiv1.ReconcileNode) (*apiv1.Reconciled, error) {
	return do[apiv1.Reconciled](ctx, c, call{method: http.MethodPost, path: join("node", "reconcile"), in: in})
}

// Drain has SPACE refuse creates and recoveries, or take them again; all else goes on. It needs an admin key.
func (c *Client) Drain(ctx context.Context, on bool) (*apiv1.Drain, error) {
	return do[apiv1.Drain](ctx, c, call{method: http.MethodPost, path: join("node", "drain"), in: apiv1.DrainNode{Drain: on}})
}

// Metrics returns the metrics of all processes of SPACE in the Prometheus text form.
func (c *Client) Metrics(ctx context.Context) ([]byte, error) {
	resp, err := c.send(ctx, call{method: http.MethodGet, path: "/metrics"})
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("read the metrics: %w", err)
	}
	return data, nil
}

// Ready is nil when SPACE can take work. It needs no key.
func (c *Client) Ready(ctx context.Context) error {
	_, err := do[apiv1.Health](ctx, c, call{method: http.MethodGet, path: "/readyz"})
	return err
}
