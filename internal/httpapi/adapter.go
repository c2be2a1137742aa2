package httpapi

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/space-sandbox/space/internal/auth"
)

// Keys of huma.Operation.Metadata by which a route says what is special about it.
const (
	metaOpen        = "open"         // no key needed
	metaAdmin       = "admin"        // role admin needed
	metaToken       = "token"        // an auth.Scope: sandbox tokens that have it are let in; without, none is
	metaRawBody     = "raw_body"     // the body is not JSON and is passed on unread
	metaQueryPrefix = "query_prefix" // a prefix of query parameters that are allowed besides the listed ones
	metaRest        = "rest"         // the last path parameter may contain slashes
)

// adapter puts huma's operations on the server's mux, each behind the same gate.
type adapter struct{ *server }

// ServeHTTP makes adapter a huma.Adapter.
func (a adapter) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.route(w, r) }

// Handle registers a typed operation of huma. Its body has been read and checked before huma sees it.
func (a adapter) Handle(op *huma.Operation, handler func(huma.Context)) {
	a.handle(op, func(w http.ResponseWriter, r *http.Request) {
		body, err := a.readJSON(op, r)
		if err != nil {
			a.fail(w, r, err)
			return
		}
		handler(&requestContext{humaContext: humago.NewContext(op, r, w), body: body})
	})
}

// handle registers a route behind the gate: authentication, then query parameters.
func (s *server) handle(op *huma.Operation, handler http.HandlerFunc) {
	s.mux.HandleFunc(op.Method+" "+muxPath(op), func(w http.ResponseWriter, r *http.Request) {
		if op.Metadata[metaRest] == true && strings.HasSuffix(r.URL.Path, "/") {
			s.fail(w, r, noRoute(r)) // the mux lets the rest be empty
			return
		}
		ctx, err := s.admit(op, r)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		handler(w, r.WithContext(ctx))
	})
}

// raw registers and documents a route that huma does not read or write.
func (s *server) raw(op huma.Operation, handler http.HandlerFunc) {
	s.api.OpenAPI().AddOperation(&op)
	s.handle(&op, handler)
}

// admit is the gate. For a token it also pins what the request's path names.
func (s *server) admit(op *huma.Operation, r *http.Request) (context.Context, error) {
	ctx := r.Context()
	if op.Metadata[metaOpen] != true {
		who, err := s.authenticate(r)
		if err != nil {
			return nil, err
		}
		if who.Token != nil {
			err = s.admitToken(op, r, *who.Token)
		} else if op.Metadata[metaAdmin] == true && who.Role != auth.RoleAdmin {
			err = forbidden()
		}
		if err != nil {
			return nil, err
		}
		ctx = withPrincipal(ctx, who)
	}
	return ctx, checkQuery(op, r.URL)
}

// muxPath is the operation's path as a pattern of http.ServeMux, which matches the escaped path segment by segment.
func muxPath(op *huma.Operation) string {
	if op.Metadata[metaRest] == true {
		return strings.TrimSuffix(op.Path, "}") + "...}"
	}
	return op.Path
}

// requestContext is a huma.Context whose body is already in memory.
type requestContext struct {
	humaContext
	body []byte
}

// humaContext gives the embedded field a name that is not that of its method Context.
type humaContext = huma.Context

// Unwrap lets huma find the context underneath.
func (c *requestContext) Unwrap() huma.Context { return c.humaContext }

// BodyReader returns the checked body.
func (c *requestContext) BodyReader() io.Reader { return bytes.NewReader(c.body) }

// SetReadDeadline does nothing: there is nothing left to read, and a deadline that stays on the connection would end
// a long wait.
func (c *requestContext) SetReadDeadline(time.Time) error { return nil }

// Header hides the media type of the body, which is JSON whatever the client calls it.
func (c *requestContext) Header(name string) string {
	if strings.EqualFold(name, "Content-Type") {
		return "application/json"
	}
	return c.humaContext.Header(name)
}

// SetStatus gives validation errors the status of the contract.
func (c *requestContext) SetStatus(status int) { c.humaContext.SetStatus(contractStatus(status)) }
