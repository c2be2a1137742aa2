package control

import (
	"context"
	"errors"
	"time"

	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
)

// SandboxToken opens the routes of one sandbox, as far as its scopes go.
type SandboxToken struct {
	Token     string
	Scopes    []auth.Scope
	ExpiresAt time.Time
}

// CreateToken signs a token for one sandbox in any state but deleting. Tokens are not recorded: the signature says what
// one allows, and the sandbox's record whether it still does. ttl is more than zero and at most auth.MaxTokenTTL.
func (c *Control) CreateToken(ctx context.Context, ref string, scopes []auth.Scope, ttl time.Duration) (SandboxToken, error) {
	if ttl <= 0 || ttl > auth.MaxTokenTTL {
		return SandboxToken{}, invalid("ttl_seconds", "must be more than 0 and at most 604800 (seven days)")
	}
	box, err := find(ctx, c.Store, ref)
	if err != nil {
		return SandboxToken{}, err
	}
	if box.State == sandbox.StateDeleting {
		return SandboxToken{}, &sandbox.Error{Code: sandbox.CodeInvalidState, Message: "a token needs a sandbox that stays",
			Cause: "sandbox " + string(box.ID) + " is being deleted", Remedy: "create another sandbox"}
	}
	token, expires, err := c.Signer.SignSandbox(auth.SandboxClaims{SandboxID: box.ID, Scopes: scopes, ExpiresAt: c.Now().Add(ttl)})
	if err != nil {
		return SandboxToken{}, err
	}
	return SandboxToken{Token: token, Scopes: scopes, ExpiresAt: expires}, nil
}

// authenticateToken resolves a sandbox token. It dies with its sandbox: at the moment a delete is accepted.
func (c *Control) authenticateToken(ctx context.Context, text string) (auth.Principal, error) {
	claims, err := c.verifier.VerifySandbox(text, c.Now())
	if err != nil {
		return auth.Principal{}, err
	}
	box, err := c.Store.Sandbox(ctx, claims.SandboxID)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return auth.Principal{}, storeError(err)
	}
	if err != nil || !box.Live() || box.State == sandbox.StateDeleting {
		return auth.Principal{}, auth.BadSandboxToken("its sandbox is deleted")
	}
	return auth.Principal{Token: &claims}, nil
}

// CommandSandbox returns which sandbox a command session belongs to. It asks the record only.
func (c *Control) CommandSandbox(ctx context.Context, id sandbox.CommandID) (sandbox.ID, error) {
	cmd, err := c.command(ctx, id)
	return cmd.SandboxID, err
}

// attachUntil is when an attach token made for by expires: never after the token that asked for it.
func (c *Control) attachUntil(by auth.Principal) time.Time {
	until := c.Now().Add(c.Limits.AttachTTL)
	if by.Token != nil && by.Token.ExpiresAt.Before(until) {
		return by.Token.ExpiresAt
	}
	return until
}
