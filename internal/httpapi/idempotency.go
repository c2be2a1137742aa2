package httpapi

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"

	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/sandbox"
)

// maxIdempotencyKey is the longest Idempotency-Key.
const maxIdempotencyKey = 128

// IdempotencyParam is the header by which a client names a request, so that sending it twice runs it once.
type IdempotencyParam struct {
	Key string `header:"Idempotency-Key" doc:"Names this request for 24 hours: sent again with the same body it answers the same operation or session, with another one it is a conflict"`
}

// ReplayHeader tells that an answer comes from an Idempotency-Key.
type ReplayHeader struct {
	Replayed string `header:"Idempotency-Replayed" doc:"true when nothing was run because the Idempotency-Key was seen before"`
}

func replayed(yes bool) ReplayHeader {
	if yes {
		return ReplayHeader{Replayed: "true"}
	}
	return ReplayHeader{}
}

// call makes the Call for a request. scope is its method and route with the resource filled in; body is what the
// request was read into, so that spelling (order of keys, white space) makes no difference.
func (p IdempotencyParam) call(ctx context.Context, scope string, body any) (control.Call, error) {
	call := control.Call{Principal: principalOf(ctx)}
	if p.Key == "" {
		return call, nil
	}
	if len(p.Key) > maxIdempotencyKey || !isPrintable(p.Key) {
		return control.Call{}, invalid(sandbox.FieldError{Field: "Idempotency-Key", Message: "must be 1 to 128 printable ASCII characters"})
	}
	canonical, err := json.Marshal(body)
	if err != nil {
		return control.Call{}, fmt.Errorf("fingerprint of a request: %w", err)
	}
	call.Idempotency = &control.Idempotency{Key: p.Key, Scope: scope, Fingerprint: sha256.Sum256(canonical)}
	return call, nil
}

func isPrintable(s string) bool {
	for _, c := range []byte(s) {
		if c < ' ' || c > '~' {
			return false
		}
	}
	return true
}
