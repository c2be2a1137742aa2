package client

import (
	"context"
	"fmt"
	"io"
	"net/http"

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

// Node describes the machine SPACE runs on; it needs an admin key.
func (c *Client) Node(ctx context.Context) (*apiv1.Node, error) {
	return do[apiv1.Node](ctx, c, call{method: http.MethodGet, path: join("node")})
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
