package agent

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"

	"github.com/space-sandbox/space/internal/sandbox"
)

// requireToken lets only requests with the token through. Comparing sums keeps the time independent of the length
// and content of what was sent.
func requireToken(token string, next http.Handler) http.Handler {
	want := sha256.Sum256([]byte(token))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		got := sha256.Sum256([]byte(given))
		if subtle.ConstantTimeCompare(got[:], want[:]) != 1 || !ok {
			writeError(w, &sandbox.Error{Code: sandbox.CodeUnauthenticated, Message: "the agent's token is missing or wrong",
				Remedy: "send the token of this machine's generation"})
			return
		}
		next.ServeHTTP(w, r)
	})
}
