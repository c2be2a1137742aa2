package httpapi

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path"
	"runtime/debug"
	"strings"
	"time"

	"github.com/space-sandbox/space/internal/problem"
	"github.com/space-sandbox/space/internal/sandbox"
)

// stall is how long a client may neither send nor take a byte before its connection is cut.
const stall = 60 * time.Second

// route finds the handler of a request. The mux's own answers (plain text 404 and 405, redirects to clean paths) are
// replaced by the error form.
func (s *server) route(w http.ResponseWriter, r *http.Request) {
	if !isCleanPath(r.URL.EscapedPath()) {
		s.fail(w, r, noRoute(r))
		return
	}
	handler, pattern := s.mux.Handler(r)
	if pattern != "" {
		s.mux.ServeHTTP(w, r) // sets the path values, which the handler alone does not
		return
	}
	refusal := &discard{header: http.Header{}}
	handler.ServeHTTP(refusal, r)
	if refusal.status != http.StatusMethodNotAllowed {
		s.fail(w, r, noRoute(r))
		return
	}
	allow := refusal.header.Get("Allow")
	w.Header().Set("Allow", allow)
	s.fail(w, r, &sandbox.Error{Code: sandbox.CodeMethodNotAllowed, Message: "this route does not have this method",
		Cause: r.Method + " is not one of " + allow, Remedy: "see /docs"})
}

func isCleanPath(p string) bool {
	clean := path.Clean(p)
	return p == clean || p == clean+"/"
}

func noRoute(r *http.Request) error {
	return &sandbox.Error{Code: sandbox.CodeNotFound, Message: "there is no such route",
		Cause: r.Method + " " + r.URL.EscapedPath(), Remedy: "see /docs for what this version has"}
}

// discard takes the status and header of an answer that nobody sees.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(status int)      { d.status = status }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }

// logged shows each request with its trace (level debug). The query is left out: it may hold what is not for logs.
func (s *server) logged(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		next.ServeHTTP(w, r)
		s.Logger.LogAttrs(r.Context(), slog.LevelDebug, "request", slog.String("method", r.Method), slog.String("path", r.URL.Path),
			slog.Int64("ms", time.Since(began).Milliseconds()))
	})
}

// recovered is the outermost handler: it bounds every write, and turns a panic into the error form. When an answer
// had begun, the connection is cut instead, so that a part is never taken for the whole.
func (s *server) recovered(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tw := newTimedWriter(w)
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			if err, ok := p.(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
				s.Logger.LogAttrs(r.Context(), slog.LevelError, "panic in a request", slog.String("method", r.Method),
					slog.String("path", r.URL.Path), slog.String("panic", fmt.Sprint(p)), slog.String("stack", string(debug.Stack())))
			}
			if tw.wrote {
				panic(http.ErrAbortHandler)
			}
			problem.Write(tw, sandbox.Errorf(sandbox.CodeInternal, "internal error"), problem.Options{})
		}()
		if r.Body != nil && r.Body != http.NoBody {
			r.Body = newTimedBody(r.Body, tw.rc)
		}
		h := tw.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		if strings.HasPrefix(r.URL.Path, "/v1/") {
			h.Set("Cache-Control", "no-store")
		}
		next.ServeHTTP(tw, r)
	})
}
