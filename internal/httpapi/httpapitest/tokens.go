package httpapitest

import (
	"context"
	"strings"
	"time"

	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/sandbox"
)

// CreateToken signs a token by the real clock.
func (f *Fake) CreateToken(ctx context.Context, ref string, scopes []auth.Scope, ttl time.Duration) (control.SandboxToken, error) {
	box, err := f.GetSandbox(ctx, ref)
	if err != nil {
		return control.SandboxToken{}, err
	}
	token, expires, err := f.signer.SignSandbox(auth.SandboxClaims{SandboxID: box.ID, Scopes: scopes, ExpiresAt: time.Now().Add(ttl)})
	return control.SandboxToken{Token: token, Scopes: scopes, ExpiresAt: expires}, err
}

func (f *Fake) tokenHolder(text string) (auth.Principal, error) {
	if !strings.HasPrefix(text, auth.TokenPrefix) {
		return auth.Principal{}, &sandbox.Error{Code: sandbox.CodeUnauthenticated, Message: "authentication is needed",
			Cause: "the key is unknown", Remedy: "use another key"}
	}
	claims, err := auth.NewVerifier(f.signer.PublicKey()).VerifySandbox(text, time.Now())
	if err != nil {
		return auth.Principal{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.find(string(claims.SandboxID)) == nil {
		return auth.Principal{}, auth.BadSandboxToken("its sandbox is deleted")
	}
	return auth.Principal{Token: &claims}, nil
}

// CommandSandbox returns the sandbox of a session.
func (f *Fake) CommandSandbox(_ context.Context, id sandbox.CommandID) (sandbox.ID, error) {
	p, err := f.process(id)
	if err != nil {
		return "", err
	}
	return p.snapshot().SandboxID, nil
}
