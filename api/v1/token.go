package apiv1

import "time"

// CreateToken is the body of POST /v1/sandboxes/{id}/tokens.
type CreateToken struct {
	Scopes     []string `json:"scopes" minItems:"1" maxItems:"16" doc:"What it may be used for: commands, files" example:"[\"commands\",\"files\"]"`
	TTLSeconds *float64 `json:"ttl_seconds,omitempty" exclusiveMinimum:"0" maximum:"604800" doc:"It expires after so long; default 3600 (one hour), at most 604800 (seven days)"`
}

// SandboxToken opens the routes of one sandbox, as far as its scopes go, until it expires or the sandbox is deleted. It
// is sent like an API key, and cannot be asked for again.
type SandboxToken struct {
	Token     string    `json:"token" example:"space_sbx_eyJhbGciOiJFZERTQSJ9…"`
	Scopes    []string  `json:"scopes"`
	ExpiresAt time.Time `json:"expires_at"`
}
