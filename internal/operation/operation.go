// Package operation is the durable record of lifecycle requests and the engine that runs them. It knows no sandbox:
// a request is a kind, a resource and named steps.
package operation

import (
	"time"

	"github.com/space-sandbox/space/internal/sandbox"
)

// State is where an operation is.
type State string

// The states of an operation. Succeeded, Failed and Canceled are final.
const (
	Queued    State = "queued"
	Running   State = "running"
	Succeeded State = "succeeded"
	Failed    State = "failed"
	Canceled  State = "canceled"
)

// Ended reports whether s is final.
func (s State) Ended() bool { return s == Succeeded || s == Failed || s == Canceled }

// Resource is what an operation works on.
type Resource struct {
	Type string // sandbox, template, checkpoint
	ID   string
}

// Step is one named part of an operation.
type Step struct {
	Name      string
	State     State
	StartedAt time.Time
	EndedAt   time.Time
	Attempts  int    // how often it was begun again after a passing failure
	Error     string // "" when it succeeded
}

// Operation is the durable record of one request.
type Operation struct {
	ID        sandbox.OperationID
	Kind      string // create, delete …
	Resource  Resource
	State     State
	Input     string // what the request asked for beside its kind; the engine does not look at it
	NoChange  bool   // it was already so
	Attempt   int    // 1, and one more for each restart that cut it off
	CreatedAt time.Time
	StartedAt time.Time
	EndedAt   time.Time
	Steps     []Step
	Error     *sandbox.Error // of Failed and Canceled
}
