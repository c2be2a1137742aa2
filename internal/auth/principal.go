// Package auth is about who may do what: API keys with their roles, and the signed tokens that open one command
// session on the data plane.
package auth

// Role says what a key may do.
type Role string

// The roles.
const (
	RoleAdmin     Role = "admin"
	RoleDeveloper Role = "developer"
)

// Principal is an authenticated caller.
type Principal struct {
	KeyID string
	Role  Role
}
