package control

import (
	"context"
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
	// Event says that something has changed, and how it is now.
	Event = store.Event
	// EventType says what an event is about.
	EventType = store.EventType
	// EventFilter selects events.
	EventFilter = store.EventFilter
	// EventPage is a part of the log of events.
	EventPage = store.EventPage
)

// The types of events.
const (
	EventOperation = store.EventOperation
	EventSandbox   = store.EventSandbox
	EventLease     = store.EventLease
	EventCommand   = store.EventCommand
	EventTemplate  = store.EventTemplate
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
	// onAccept runs in the transaction that accepts the call, with the id of what it leads to; its error refuses the call.
	onAccept func(ctx context.Context, tx store.Tx, result string) error
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
	Lease    *LeasePatch
}

// LeasePatch changes a lease. With Remove there is none any more, and the rest does not matter.
type LeasePatch struct {
	Remove bool
	TTL    time.Duration
	// Extend adds TTL to what is left; else the lease begins anew with TTL. Without a lease both are the same.
	Extend bool
	// OnExpiry is "" to leave it as it is; a new lease is for deleting then.
	OnExpiry sandbox.Expiry
}

// LedgerObject is an object of the kernel that is there and should not be, or the other way round.
type LedgerObject struct {
	Kind, Name     string
	SandboxID      sandbox.ID // "" when it belongs to none
	Live, Expected bool
}

// Ledger compares what node should have made with what there is.
type Ledger struct {
	Kinds map[string]LedgerKind
	Drift []LedgerObject
}

// LedgerKind counts the objects of one kind.
type LedgerKind struct{ Live, Expected int }

// Repair is what a reconcile did about one object, or would do.
type Repair struct {
	LedgerObject
	Action string // remove or report
	Done   bool
	Reason string
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
	MaxSandboxes   int  // that may live at once, 0: no limit
	Draining       bool // creates and recoveries are refused
	UnderWay       int  // operations that have not ended
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
