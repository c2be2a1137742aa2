package auth

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/space-sandbox/space/internal/sandbox"
)

// TokenPrefix is what every sandbox token begins with, so that people and scanners recognise one. A JWT follows.
const TokenPrefix = "space_sbx_"

// Lifetimes of sandbox tokens.
const (
	DefaultTokenTTL = time.Hour
	MaxTokenTTL     = 7 * 24 * time.Hour
)

const sandboxAudience = "space.sandbox"

// tokenIDBytes is the size of a token's random id, which is written in hex.
const tokenIDBytes = 16

// SandboxClaims is what a sandbox token allows: the routes of one sandbox, as far as its scopes go, until ExpiresAt.
// Whether the sandbox still exists, its verifier has to ask the record.
type SandboxClaims struct {
	SandboxID sandbox.ID
	Scopes    []Scope   // sorted, each once, at least one
	ExpiresAt time.Time // whole seconds
	TokenID   string    // 32 random hex digits; set by SignSandbox
}

// Allows reports whether scope is among the claims.
func (c SandboxClaims) Allows(scope Scope) bool { return slices.Contains(c.Scopes, scope) }

// sandboxJWT is the wire form of SandboxClaims.
type sandboxJWT struct {
	Scopes []string `json:"space_scopes"`
	jwt.RegisteredClaims
}

// SignSandbox makes a token for c and returns it with the moment it expires: ExpiresAt, which must be set, rounded up to
// a whole second.
func (s *Signer) SignSandbox(c SandboxClaims) (token string, expires time.Time, err error) {
	if c.ExpiresAt.IsZero() || c.SandboxID == "" || len(c.Scopes) == 0 {
		return "", time.Time{}, errors.New("sign sandbox token: a claim is missing")
	}
	claims := sandboxJWT{RegisteredClaims: jwt.RegisteredClaims{Subject: string(c.SandboxID), Audience: jwt.ClaimStrings{sandboxAudience},
		ExpiresAt: jwt.NewNumericDate(roundUp(c.ExpiresAt.UTC())), ID: newTokenID()}}
	for _, scope := range c.Scopes {
		claims.Scopes = append(claims.Scopes, string(scope))
	}
	token, err = jwt.NewWithClaims(jwt.SigningMethodEdDSA, claims).SignedString(s.key)
	if err != nil {
		return "", time.Time{}, fmt.Errorf("sign sandbox token: %w", err)
	}
	return TokenPrefix + token, claims.ExpiresAt.Time, nil
}

// roundUp keeps a token that was asked for half a second from being expired when it is made.
func roundUp(t time.Time) time.Time {
	whole := t.Truncate(time.Second)
	if whole.Before(t) {
		whole = whole.Add(time.Second)
	}
	return whole
}

func newTokenID() string {
	var id [tokenIDBytes]byte
	rand.Read(id[:]) // never fails (crypto/rand)
	return hex.EncodeToString(id[:])
}

// VerifySandbox returns the claims of a sandbox token that is valid at now. Every failure is CodeUnauthenticated; the
// error never contains the token.
func (v *Verifier) VerifySandbox(token string, now time.Time) (SandboxClaims, error) {
	text, ok := strings.CutPrefix(token, TokenPrefix)
	if !ok {
		return SandboxClaims{}, BadSandboxToken("it has not the form of one")
	}
	var claims sandboxJWT
	if cause := v.verify(text, sandboxAudience, &claims, now); cause != "" {
		return SandboxClaims{}, BadSandboxToken(cause)
	}
	return claims.parse()
}

func (c sandboxJWT) parse() (SandboxClaims, error) {
	id, err1 := sandbox.ParseID(c.Subject)
	scopes, err2 := ParseScopes(c.Scopes)
	raw, err3 := hex.DecodeString(c.ID)
	if err1 != nil || err2 != nil || err3 != nil || len(raw) != tokenIDBytes {
		return SandboxClaims{}, BadSandboxToken("the token's claims are not ours")
	}
	return SandboxClaims{SandboxID: id, Scopes: scopes, ExpiresAt: c.ExpiresAt.UTC(), TokenID: c.ID}, nil
}

// BadSandboxToken is the error for a sandbox token that does not authenticate anybody.
func BadSandboxToken(cause string) *sandbox.Error {
	return &sandbox.Error{Code: sandbox.CodeUnauthenticated, Message: "the sandbox token is not accepted", Cause: cause,
		Remedy: "ask whoever has a key for a new one: POST /v1/sandboxes/{id}/tokens"}
}
