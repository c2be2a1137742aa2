package httpapi

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
)

// Control is what API v1 needs from control. Every error is, or wraps, a *sandbox.Error. A ref is a sandbox's id or
// name. Waits that run out are no errors: the newest record is returned.
type Control interface {
	// Authenticate resolves a key; unknown ones are CodeUnauthenticated.
	Authenticate(ctx context.Context, key string) (auth.Principal, error)

	CreateSandbox(ctx context.Context, call Call, spec sandbox.Spec) (Accepted, error)
	GetSandbox(ctx context.Context, ref string) (sandbox.Sandbox, error)
	ListSandboxes(ctx context.Context, filter SandboxFilter) (Page[sandbox.Sandbox], error)
	PatchSandbox(ctx context.Context, ref string, patch SandboxPatch) (sandbox.Sandbox, error)
	DeleteSandbox(ctx context.Context, call Call, ref string) (Accepted, error)

	GetOperation(ctx context.Context, id sandbox.OperationID, wait time.Duration) (operation.Operation, error)
	ListOperations(ctx context.Context, page PageRequest) (Page[operation.Operation], error)
	CancelOperation(ctx context.Context, id sandbox.OperationID) (operation.Operation, error)

	// CreateCommand registers a command session and, with start, starts it.
	CreateCommand(ctx context.Context, call Call, ref string, spec sandbox.CommandSpec, start bool) (CreatedCommand, error)
	// Exec runs a command to its end with the given standard input and returns its record and output, each stream
	// cut at 1 MiB. When ctx ends first, the command goes on.
	Exec(ctx context.Context, call Call, ref string, spec sandbox.CommandSpec, stdin []byte) (ExecResult, error)
	GetCommand(ctx context.Context, id sandbox.CommandID, wait time.Duration) (sandbox.Command, error)
	ListCommands(ctx context.Context, ref string, filter CommandFilter) (Page[sandbox.Command], error)
	AttachCommand(ctx context.Context, id sandbox.CommandID) (Attach, error)
	SignalCommand(ctx context.Context, id sandbox.CommandID, signal string) (sandbox.Command, error)
	// KillCommand kills the process group (DELETE); for an ended command it changes nothing.
	KillCommand(ctx context.Context, id sandbox.CommandID) (sandbox.Command, error)

	// ProxyFiles and ProxyStdin pass a body through to the gateway unread and answer w.
	ProxyFiles(w http.ResponseWriter, r *http.Request, ref string)
	ProxyStdin(w http.ResponseWriter, r *http.Request, id sandbox.CommandID)

	ListTemplates(ctx context.Context) ([]sandbox.Template, error)
	GetTemplate(ctx context.Context, ref string) (sandbox.Template, error)
	Node(ctx context.Context) (NodeInfo, error)
	// Ready is nil when control can take work: its store, node and gateway answer.
	Ready(ctx context.Context) error
	// WriteMetrics writes the Prometheus text form.
	Metrics(w io.Writer) error
}

// Call is what goes with a call that changes something.
type Call struct {
	Principal auth.Principal
	// Idempotency is nil when the client sent no Idempotency-Key.
	Idempotency *Idempotency
	IfBusyFail  bool
	IfState     sandbox.State
}

// Idempotency identifies a request: the same Key, Method, Route and Principal with the same Fingerprint is the same
// request; with another one it is a conflict.
type Idempotency struct {
	Key         string
	Scope       string // method, route and resource
	Fingerprint [32]byte
}

// Accepted is the answer to a lifecycle call: the operation as it stands and its sandbox.
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
	Stdout   []byte
	Stderr   []byte
	Replayed bool
}

// PageRequest bounds a list. Cursor is opaque.
type PageRequest struct {
	Limit     int // 1 to 100
	Cursor    string
	Ascending bool
	Count     bool
}

// Page is one page of a list.
type Page[T any] struct {
	Items      []T
	NextCursor string
	Total      *int // only when asked
}

// SandboxFilter selects sandboxes; deleted ones only when States names them.
type SandboxFilter struct {
	PageRequest
	States       []sandbox.State
	CreatedAfter time.Time
	Template     string
	Metadata     map[string]string
}

// CommandFilter selects command sessions.
type CommandFilter struct {
	PageRequest
	Tag    string
	PID    int
	States []sandbox.CommandState
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
