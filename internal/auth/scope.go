package auth

import (
	"fmt"
	"slices"
	"strings"

	"github.com/space-sandbox/space/internal/sandbox"
)

// Scope is one thing that a sandbox token may be used for. Reading the sandbox itself needs none.
type Scope string

// The scopes.
const (
	ScopeCommands Scope = "commands" // command sessions: run, read, write, signal
	ScopeFiles    Scope = "files"    // everything below …/files
)

// Scopes returns all scopes there are.
func Scopes() []Scope { return []Scope{ScopeCommands, ScopeFiles} }

// ParseScopes reads a list of scopes, sorted and each once. An empty list, and what is no scope, is CodeInvalidArgument
// with a field error that names those there are.
func ParseScopes(names []string) ([]Scope, error) {
	var wrong []sandbox.FieldError
	if len(names) == 0 {
		wrong = append(wrong, sandbox.FieldError{Field: "scopes", Message: "must name at least one of " + ListScopes(Scopes())})
	}
	var out []Scope
	for i, name := range names {
		if !slices.Contains(Scopes(), Scope(name)) {
			wrong = append(wrong, sandbox.FieldError{Field: fmt.Sprintf("scopes[%d]", i),
				Message: fmt.Sprintf("%.40q is not a scope; there are %s", name, ListScopes(Scopes()))})
			continue
		}
		out = append(out, Scope(name))
	}
	if len(wrong) > 0 {
		return nil, &sandbox.Error{Code: sandbox.CodeInvalidArgument, Message: "the request is not valid",
			Cause: wrong[0].Field + ": " + wrong[0].Message, Remedy: "use the scopes " + ListScopes(Scopes()), Fields: wrong}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// ListScopes writes scopes as text: "commands, files".
func ListScopes(scopes []Scope) string {
	parts := make([]string, len(scopes))
	for i, s := range scopes {
		parts[i] = string(s)
	}
	return strings.Join(parts, ", ")
}
