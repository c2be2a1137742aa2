package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/sandbox"
)

func (s *server) addTokens() {
	huma.Register(s.api, huma.Operation{
		OperationID: "create-token", Method: http.MethodPost, Path: "/v1/sandboxes/{id}/tokens", Tags: []string{tagSandboxes},
		Summary: "Make a token for one sandbox", DefaultStatus: http.StatusCreated, Responses: errorResponses(),
		Description: "The token is sent like a key and opens this sandbox's routes, as far as its scopes go, until it expires or the sandbox is deleted. It opens nothing else, and cannot make tokens.",
	}, s.createToken)
}

type createTokenInput struct {
	SandboxPath
	IdempotencyParam
	Body apiv1.CreateToken
}

type createTokenOutput struct {
	ReplayHeader
	Body apiv1.SandboxToken
}

// createToken answers a replay with another token for the same scopes: tokens are not kept.
func (s *server) createToken(ctx context.Context, in *createTokenInput) (*createTokenOutput, error) {
	made, again, err := s.newToken(ctx, in)
	if err != nil {
		return nil, s.refused(ctx, "create token", err)
	}
	out := &createTokenOutput{ReplayHeader: replayed(again), Body: apiv1.SandboxToken{Token: made.Token, ExpiresAt: made.ExpiresAt.UTC()}}
	for _, scope := range made.Scopes {
		out.Body.Scopes = append(out.Body.Scopes, string(scope))
	}
	return out, nil
}

func (s *server) newToken(ctx context.Context, in *createTokenInput) (made control.SandboxToken, again bool, err error) {
	ref, err := sandboxRef(in.ID)
	if err != nil {
		return made, false, err
	}
	scopes, err := auth.ParseScopes(in.Body.Scopes)
	if err != nil {
		return made, false, err
	}
	ttl := auth.DefaultTokenTTL
	if in.Body.TTLSeconds != nil {
		ttl = time.Duration(*in.Body.TTLSeconds * float64(time.Second))
	}
	call, err := in.call(ctx, "POST /v1/sandboxes/"+ref+"/tokens", in.Body)
	if err != nil {
		return made, false, err
	}
	create := func() (err error) { made, err = s.Control.CreateToken(ctx, ref, scopes, ttl); return err }
	again, err = s.Control.Once(ctx, call, ref, create)
	if again {
		err = create()
	}
	return made, again, err
}

// anyScope is what a route asks for that every token of its sandbox opens.
const anyScope auth.Scope = ""

// forTokens is the metadata of a route that sandbox tokens open too. A route that does not say so is closed to them.
func forTokens(scope auth.Scope) map[string]any { return map[string]any{metaToken: scope} }

// admitToken lets a sandbox token through the gate of a route. It is the one place that does: the path's {id} is pinned
// to the token's own sandbox, or a session of it, here, so that no handler has to think of it, and none can be led
// elsewhere by a name that moves meanwhile. What belongs to others looks like what does not exist.
func (s *server) admitToken(op *huma.Operation, r *http.Request, token auth.SandboxClaims) error {
	scope, open := op.Metadata[metaToken].(auth.Scope)
	if !open {
		return closedToTokens(op)
	}
	if scope != anyScope && !token.Allows(scope) {
		return missingScope(scope, token)
	}
	switch {
	case isBelow(op.Path, "/v1/sandboxes/{id}"):
		return s.pinSandbox(r, token.SandboxID)
	case isBelow(op.Path, "/v1/commands/{id}"):
		return s.checkCommand(r, token.SandboxID)
	case op.OperationID == listSandboxesID: // shows what visibleTo says
		return nil
	}
	return closedToTokens(op)
}

func isBelow(path, root string) bool { return path == root || strings.HasPrefix(path, root+"/") }

// pinSandbox makes the path name the sandbox by its id, or refuses when it names another one.
func (s *server) pinSandbox(r *http.Request, own sandbox.ID) error {
	ref := r.PathValue("id")
	if ref != string(own) {
		if _, err := sandbox.ParseName(ref); err != nil {
			return noSuchSandbox(ref)
		}
		box, err := s.Control.GetSandbox(r.Context(), string(own))
		if err != nil && !isNotFound(err) {
			return err
		}
		if err != nil || box.ID != own || box.Name != ref {
			return noSuchSandbox(ref)
		}
	}
	r.SetPathValue("id", string(own))
	return nil
}

// checkCommand refuses a path that names a session of another sandbox. Sessions never change their sandbox.
func (s *server) checkCommand(r *http.Request, own sandbox.ID) error {
	id, err := sandbox.ParseCommandID(r.PathValue("id"))
	if err != nil {
		return err
	}
	owner, err := s.Control.CommandSandbox(r.Context(), id)
	if err != nil && !isNotFound(err) {
		return err
	}
	if err != nil || owner != own {
		return &sandbox.Error{Code: sandbox.CodeNotFound, Message: "there is no such command session", Cause: string(id),
			Remedy: "GET /v1/sandboxes/{id}/commands lists those of the token's sandbox"}
	}
	return nil
}

// visibleTo returns the only sandbox that a caller may see in lists; "" is all.
func visibleTo(who auth.Principal) sandbox.ID {
	if who.Token == nil {
		return ""
	}
	return who.Token.SandboxID
}

func noSuchSandbox(ref string) error {
	return &sandbox.Error{Code: sandbox.CodeNotFound, Message: "there is no such sandbox", Cause: fmt.Sprintf("%.64q", ref),
		Remedy: "a token opens only the sandbox it was made for; GET /v1/sandboxes shows it"}
}

func closedToTokens(op *huma.Operation) error {
	return &sandbox.Error{Code: sandbox.CodeForbidden, Message: "this needs a key",
		Cause: fmt.Sprintf("%s %s is not open to tokens for one sandbox", op.Method, op.Path), Remedy: "use an API key"}
}

func missingScope(scope auth.Scope, token auth.SandboxClaims) error {
	return &sandbox.Error{Code: sandbox.CodeForbidden, Message: fmt.Sprintf("this needs a token with the scope %s", scope),
		Cause: "the token has " + auth.ListScopes(token.Scopes), Remedy: "use a key, or a token that was made with this scope"}
}
