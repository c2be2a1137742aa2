package client

import (
	"context"
	"net/http"

	apiv1 "github.com/space-sandbox/space/api/v1"
)

// CreateToken makes a token for one sandbox, which New takes in the place of a key. It opens the sandbox's own routes as
// far as its scopes go, until it expires or the sandbox is deleted, and cannot be asked for again. It takes
// IdempotencyKey; a repeated call answers another token.
func (c *Client) CreateToken(ctx context.Context, ref string, in apiv1.CreateToken, opts ...Option) (*apiv1.SandboxToken, error) {
	return do[apiv1.SandboxToken](ctx, c, call{method: http.MethodPost, path: join("sandboxes", ref, "tokens"), in: in}.with(opts))
}
