package auth

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/space-sandbox/space/internal/sandbox"
)

const (
	attachAudience = "space.attach"
	// maxTokenBytes bounds what a verifier looks at; a token of ours has about 450.
	maxTokenBytes = 2048
)

// AttachClaims is what an attach token allows: reading from and writing to one command session until ExpiresAt.
type AttachClaims struct {
	CommandID sandbox.CommandID
	SandboxID sandbox.ID
	ProcessID sandbox.ProcessID
	ExpiresAt time.Time // whole seconds
	TokenID   string    // random; set by SignAttach
}

// attachJWT is the wire form of AttachClaims: a JWT (RFC 7519) signed with EdDSA over Ed25519.
type attachJWT struct {
	SandboxID string `json:"space_sandbox"`
	ProcessID string `json:"space_process"`
	jwt.RegisteredClaims
}

// SignAttach makes a token for c and returns it with the moment it expires. ExpiresAt must be set.
func (s *Signer) SignAttach(c AttachClaims) (token string, expires time.Time, err error) {
	if c.ExpiresAt.IsZero() || c.CommandID == "" || c.SandboxID == "" || c.ProcessID == "" {
		return "", time.Time{}, errors.New("sign attach token: a claim is missing")
	}
	exp := c.ExpiresAt.UTC().Truncate(time.Second)
	claims := attachJWT{SandboxID: string(c.SandboxID), ProcessID: string(c.ProcessID),
		RegisteredClaims: jwt.RegisteredClaims{Subject: string(c.CommandID), Audience: jwt.ClaimStrings{attachAudience},
			ExpiresAt: jwt.NewNumericDate(exp), ID: newTokenID()}}
	token, err = jwt.NewWithClaims(jwt.SigningMethodEdDSA, claims).SignedString(s.key)
	if err != nil {
		return "", time.Time{}, fmt.Errorf("sign attach token: %w", err)
	}
	return token, exp, nil
}

// Verifier checks tokens with the public key alone: whoever has it cannot make tokens. It is safe for
// concurrent use.
type Verifier struct {
	key ed25519.PublicKey
}

// NewVerifier returns a Verifier for pub, which must have 32 bytes; with any other key nothing verifies.
func NewVerifier(pub ed25519.PublicKey) *Verifier {
	if len(pub) != ed25519.PublicKeySize {
		return &Verifier{}
	}
	return &Verifier{key: append(ed25519.PublicKey(nil), pub...)}
}

// VerifyAttach returns the claims of a token that is valid at now. Every failure is CodeUnauthenticated; the error
// never contains the token.
func (v *Verifier) VerifyAttach(token string, now time.Time) (AttachClaims, error) {
	var claims attachJWT
	if cause := v.verify(token, attachAudience, &claims, now); cause != "" {
		return AttachClaims{}, badToken(cause)
	}
	return claims.parse()
}

// verify checks a JWT's signature, audience and expiry and reads its claims. It returns why it is refused, "" when it is
// not. The audience is what keeps the kinds of tokens apart: they are signed with one key.
func (v *Verifier) verify(token, audience string, claims jwt.Claims, now time.Time) (cause string) {
	if v.key == nil {
		return "no verification key is known yet"
	}
	if len(token) == 0 || len(token) > maxTokenBytes {
		return "there is no token, or it is too long"
	}
	parser := jwt.NewParser(jwt.WithValidMethods([]string{jwt.SigningMethodEdDSA.Alg()}), jwt.WithAudience(audience),
		jwt.WithExpirationRequired(), jwt.WithStrictDecoding(), jwt.WithTimeFunc(func() time.Time { return now }))
	_, err := parser.ParseWithClaims(token, claims, func(*jwt.Token) (any, error) { return v.key, nil })
	switch {
	case errors.Is(err, jwt.ErrTokenExpired):
		return "the token has expired"
	case err != nil:
		return "the token is not valid"
	}
	return ""
}

func (c attachJWT) parse() (AttachClaims, error) {
	out := AttachClaims{ExpiresAt: c.ExpiresAt.UTC(), TokenID: c.ID}
	var err1, err2, err3 error
	out.CommandID, err1 = sandbox.ParseCommandID(c.Subject)
	out.SandboxID, err2 = sandbox.ParseID(c.SandboxID)
	out.ProcessID, err3 = sandbox.ParseProcessID(c.ProcessID)
	if err1 != nil || err2 != nil || err3 != nil {
		return AttachClaims{}, badToken("the token's claims are not ours")
	}
	return out, nil
}

func badToken(cause string) *sandbox.Error {
	return &sandbox.Error{Code: sandbox.CodeUnauthenticated, Message: "the attach token is not accepted", Cause: cause,
		Remedy: "ask for a new one with POST /v1/commands/{id}/attach"}
}
