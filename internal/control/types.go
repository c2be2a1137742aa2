package control

import (
	"time"

	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
)

// Lists are the store's: the same filters and opaque cursors reach from the API to the database.
type (
	// PageRequest bounds a list.
	PageRequest = store.PageRequest
	// SandboxFilter selects sandboxes.
	SandboxFilter = store.SandboxFilter
	// OperationFilter selects operations.
	OperationFilter = store.OperationFilter
	// CommandFilter selects command sessions of one sandbox.
	CommandFilter = store.CommandFilter
)

// Page is one page of a list.
type Page[T any] = store.Page[T]

// Call is what goes with a call that changes something.
type Call struct {
	Principal auth.Principal
	// Idempotency is nil when the client sent no Idempotency-Key.
	Idempotency *Idempotency
	IfBusyFail  bool
	IfState     sandbox.State
}

// Idempotency identifies a request: the same Key, Scope and Principal with the same Fingerprint is the same request;
// with another one it is a conflict.
type Idempotency struct {
	Key         string
	Scope       string // method, route and resource
	Fingerprint [32]byte
}

// Accepted is the answer to a lifecycle call: the operation as it stands and its sandbox, if it concerns one.
type Accepted struct {
	Operation operation.Operation
	Sandbox   sandbox.Sandbox
	Replayed  bool // answered from the Idempotency-Key; nothing was run
}

// CreatedCommand is the answer to creating a command session.
type CreatedCommand struct {
	Command  sandbox.Command
	Attach   Attach
	Replayed bool
}

// Attach opens one command session on the data plane.
type Attach struct {
	URL       string
	Token     string
	ExpiresAt time.Time
}

// ExecResult is a finished (or, when the wait ended, running) command with its output.
type ExecResult struct {
	Command  sandbox.Command
	Stdout   []byte // what the terminal showed, with one
	Stderr   []byte
	Replayed bool
}

// SandboxPatch changes what is not nil. An empty Name removes the name; Metadata replaces all.
type SandboxPatch struct {
	Name     *string
	Metadata map[string]string
}

// NodeInfo describes the machine SPACE runs on.
type NodeInfo struct {
	InstallationID string
	Drivers        []DriverInfo
	DefaultDriver  string
	PoolKind       string
	PoolTotal      int64
	PoolFree       int64
	PoolReserve    int64 // below it node pauses all machines
	CPUs           int
	MemoryBytes    int64
	MemoryFree     int64
	Kernel         string
	Sandboxes      int
	Warnings       []string
}

// DriverInfo is a driver with the result of its probe.
type DriverInfo struct {
	Name      string
	Available bool
	Isolation string
	Version   string
	Reason    string
}
