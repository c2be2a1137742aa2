package ingress

import (
	"net/http"
	"strings"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

const bearerProtocol = "bearer."

// requestToken finds the attach token in the Authorization header, the query or, as browsers cannot set headers on a
// WebSocket, a subprotocol. Two different ones are refused: a proxy might judge by the other.
func requestToken(r *http.Request, p params) (string, error) {
	found := append(headerTokens(r), protocolTokens(r)...)
	if t, ok := p["token"]; ok {
		found = append(found, t)
	}
	if len(found) == 0 {
		return "", &sandbox.Error{Code: sandbox.CodeUnauthenticated, Message: "the attach token is missing",
			Remedy: "send Authorization: Bearer <token>, ?token= or the subprotocol bearer.<token>"}
	}
	for _, t := range found[1:] {
		if t != found[0] {
			return "", sandbox.Errorf(sandbox.CodeInvalidArgument, "the request carries two different tokens")
		}
	}
	return found[0], nil
}

func headerTokens(r *http.Request) []string {
	var found []string
	for _, v := range r.Header.Values("Authorization") {
		scheme, token, _ := strings.Cut(v, " ")
		if strings.EqualFold(scheme, "bearer") {
			found = append(found, strings.TrimSpace(token))
		}
	}
	return found
}

func protocolTokens(r *http.Request) []string {
	var found []string
	for _, p := range offeredProtocols(r) {
		if t, ok := strings.CutPrefix(p, bearerProtocol); ok {
			found = append(found, t)
		}
	}
	return found
}

func offeredProtocols(r *http.Request) []string {
	var offered []string
	for _, v := range r.Header.Values("Sec-WebSocket-Protocol") {
		for p := range strings.SplitSeq(v, ",") {
			offered = append(offered, strings.TrimSpace(p))
		}
	}
	return offered
}

// checkProtocol accepts clients that offer our subprotocol and those that offer none; who only speaks others is told
// before the upgrade. A token offered as a protocol does not count as one.
func checkProtocol(r *http.Request) error {
	others := 0
	for _, p := range offeredProtocols(r) {
		switch {
		case p == apiv1.AttachProtocol:
			return nil
		case !strings.HasPrefix(p, bearerProtocol):
			others++
		}
	}
	if others == 0 {
		return nil
	}
	return &sandbox.Error{Code: sandbox.CodeInvalidArgument, Message: "none of the offered subprotocols is known",
		Remedy: "offer " + apiv1.AttachProtocol}
}
