package gateway

import (
	"context"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/guest"
	"github.com/space-sandbox/space/internal/ingress"
	"github.com/space-sandbox/space/internal/sandbox"
)

// backend gives the data plane what it needs of the gateway.
type backend struct{ g *Gateway }

// VerifyAttach implements ingress.Backend.
func (b backend) VerifyAttach(token string) (auth.AttachClaims, error) {
	b.g.mu.Lock()
	v, closed := b.g.verifier, b.g.closed
	b.g.mu.Unlock()
	switch {
	case closed:
		return auth.AttachClaims{}, closing()
	case v == nil:
		return auth.AttachClaims{}, unconfigured()
	}
	return v.VerifyAttach(token, b.g.deps.Now())
}

// Session implements ingress.Backend. The token must agree with what control has told about the session.
func (b backend) Session(c auth.AttachClaims) (ingress.Session, error) {
	b.g.mu.Lock()
	defer b.g.mu.Unlock()
	rt, err := b.g.reach(c.SandboxID)
	if err != nil {
		return ingress.Session{}, err
	}
	process, known := rt.session(c.CommandID)
	if !known {
		return ingress.Session{}, &sandbox.Error{Code: sandbox.CodeNotFound, Message: "no such command session in this sandbox"}
	}
	if process != c.ProcessID {
		return ingress.Session{}, &sandbox.Error{Code: sandbox.CodeForbidden, Message: "the token is not for this command session",
			Cause: "it names another process", Remedy: "ask for a new token: POST /v1/commands/{id}/attach"}
	}
	return ingress.Session{SandboxID: rt.id, CommandID: c.CommandID, ProcessID: process, Guest: counted{port{rt.guest}, b.g.metrics}, Life: rt.life}, nil
}

// port is a guest as the data plane sees it.
type port struct{ *guest.Client }

// Attach implements ingress.Guest.
func (p port) Attach(ctx context.Context, req *agentv1.AttachRequest) (ingress.Stream, error) {
	return p.Client.Attach(ctx, req)
}

// ResizeProcess implements ingress.Guest.
func (p port) ResizeProcess(ctx context.Context, id sandbox.ProcessID, size *agentv1.TerminalSize) error {
	_, err := p.Client.ResizeProcess(ctx, id, size)
	return err
}

// SignalProcess implements ingress.Guest.
func (p port) SignalProcess(ctx context.Context, id sandbox.ProcessID, signal string) error {
	_, err := p.Client.SignalProcess(ctx, id, signal)
	return err
}
