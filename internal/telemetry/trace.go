package telemetry

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"net/http"
)

// Header carries a Trace between processes, and to and from clients (W3C Trace Context).
const Header = "Traceparent"

// Trace says to which request something belongs. The zero Trace belongs to none.
type Trace struct {
	ID   string // 32 hex digits
	span string // 16 hex digits: the call it came with
}

// NewTrace begins a trace.
func NewTrace() Trace { return Trace{ID: randomHex(16), span: randomHex(8)} }

func randomHex(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails (crypto/rand)
	return hex.EncodeToString(b)
}

// traceparentLen is the length of version 00; later versions may only append.
const traceparentLen = 55

// ParseTrace reads a traceparent header. What is not one gives false: then a new trace is begun, as the standard says.
func ParseTrace(header string) (Trace, bool) {
	if len(header) < traceparentLen || header[2] != '-' || header[35] != '-' || header[52] != '-' {
		return Trace{}, false
	}
	version, id, span, flags := header[:2], header[3:35], header[36:52], header[53:55]
	rest := header[traceparentLen:]
	switch {
	case !lowerHex(version) || version == "ff" || version == "00" && rest != "" || rest != "" && rest[0] != '-':
		return Trace{}, false
	case !lowerHex(id) || !lowerHex(span) || !lowerHex(flags) || zeros(id) || zeros(span):
		return Trace{}, false
	}
	return Trace{ID: id, span: span}, true
}

func lowerHex(s string) bool {
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

func zeros(s string) bool {
	for _, c := range []byte(s) {
		if c != '0' {
			return false
		}
	}
	return true
}

// String is t as a header, "" for the zero Trace.
func (t Trace) String() string {
	if t.ID == "" {
		return ""
	}
	return "00-" + t.ID + "-" + t.span + "-01"
}

// next is t for a call made on its behalf.
func (t Trace) next() Trace { return Trace{ID: t.ID, span: randomHex(8)} }

type traceKey struct{}

// WithTrace returns a context that belongs to t.
func WithTrace(ctx context.Context, t Trace) context.Context {
	return context.WithValue(ctx, traceKey{}, t)
}

// TraceOf returns the trace that ctx belongs to, or the zero Trace.
func TraceOf(ctx context.Context) Trace {
	t, _ := ctx.Value(traceKey{}).(Trace)
	return t
}

// Inject adds the trace of ctx to the headers of a call.
func Inject(ctx context.Context, h http.Header) {
	if t := TraceOf(ctx); t.ID != "" {
		h.Set(Header, t.next().String())
	}
}

// Extract returns ctx with the trace that came with a call, or with a new one.
func Extract(ctx context.Context, h http.Header) context.Context {
	t, ok := ParseTrace(h.Get(Header))
	if !ok {
		t = NewTrace()
	}
	return WithTrace(ctx, t)
}

// Traced gives each request its trace and answers it as a header.
func Traced(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := Extract(r.Context(), r.Header)
		w.Header().Set(Header, TraceOf(ctx).String())
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}
