package httpapi

import (
	"context"
	"net/http"
	"strings"

	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/sandbox"
)

// maxKeyBytes bounds what is looked at as a key or token.
const maxKeyBytes = 4096

type principalKey struct{}

func withPrincipal(ctx context.Context, who auth.Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, who)
}

// principalOf returns who the gate let in; the zero Principal on open routes.
func principalOf(ctx context.Context) auth.Principal {
	who, _ := ctx.Value(principalKey{}).(auth.Principal)
	return who
}

// authenticate resolves the key or sandbox token of a request: Authorization: Bearer, else X-API-Key.
func (s *server) authenticate(r *http.Request) (auth.Principal, error) {
	key := r.Header.Get("X-API-Key")
	if header := r.Header.Get("Authorization"); header != "" {
		scheme, rest, _ := strings.Cut(header, " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return auth.Principal{}, unauthenticated("the Authorization header is not of the form Bearer <key>")
		}
		key = strings.TrimSpace(rest)
	}
	switch {
	case key == "":
		return auth.Principal{}, unauthenticated("the request has no key")
	case len(key) > maxKeyBytes:
		return auth.Principal{}, unauthenticated("the key is unknown")
	}
	return s.Control.Authenticate(r.Context(), key)
}

func unauthenticated(cause string) error {
	return &sandbox.Error{Code: sandbox.CodeUnauthenticated, Message: "authentication is needed", Cause: cause,
		Remedy: "send Authorization: Bearer <key>; space setup writes the first key to admin.key in the data directory"}
}

func forbidden() error {
	return &sandbox.Error{Code: sandbox.CodeForbidden, Message: "this needs a key with the role admin",
		Cause: "the key has the role developer", Remedy: "use an admin key"}
}
