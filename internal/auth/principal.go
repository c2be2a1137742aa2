// Package auth is about who may do what: API keys with their roles, signed tokens for one sandbox, and the signed tokens
// that open one command session on the data plane.
package auth

// Role says what a key may do.
type Role string

// The roles.
const (
	RoleAdmin     Role = "admin"
	RoleDeveloper Role = "developer"
)

// Principal is an authenticated caller: a key, or a token for one sandbox. A token has no KeyID and no Role, so that
// whoever asks only for a role refuses it.
type Principal struct {
	KeyID string
	Role  Role
	// Token is what a token allows; nil for a key.
	Token *SandboxClaims
}

// ID tells callers apart, for instance their Idempotency-Keys. No token has the ID of a key or of another token.
func (p Principal) ID() string {
	if p.Token != nil {
		return "token_" + p.Token.TokenID
	}
	return p.KeyID
}
