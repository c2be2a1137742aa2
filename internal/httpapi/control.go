package httpapi

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
)

// Control is what API v1 needs from control. Every error is, or wraps, a *sandbox.Error. A ref is a sandbox's id or
// name. Waits that run out are no errors: the newest record is returned.
type Control interface {
	// Authenticate resolves a key or sandbox token. Unknown ones, and tokens that have expired or whose sandbox is
	// deleted, are CodeUnauthenticated.
	Authenticate(ctx context.Context, key string) (auth.Principal, error)

	CreateSandbox(ctx context.Context, call control.Call, spec sandbox.Spec) (control.Accepted, error)
	GetSandbox(ctx context.Context, ref string) (sandbox.Sandbox, error)
	ListSandboxes(ctx context.Context, filter control.SandboxFilter) (control.Page[sandbox.Sandbox], error)
	PatchSandbox(ctx context.Context, ref string, patch control.SandboxPatch) (sandbox.Sandbox, error)
	DeleteSandbox(ctx context.Context, call control.Call, ref string) (control.Accepted, error)
	// PauseSandbox, ResumeSandbox and RecoverSandbox are legal as sandbox.Verb says. An operation that has nothing to
	// change has ended when they return.
	PauseSandbox(ctx context.Context, call control.Call, ref string) (control.Accepted, error)
	ResumeSandbox(ctx context.Context, call control.Call, ref string) (control.Accepted, error)
	RecoverSandbox(ctx context.Context, call control.Call, ref string) (control.Accepted, error)

	// CreateToken makes a token for one sandbox.
	CreateToken(ctx context.Context, ref string, scopes []auth.Scope, ttl time.Duration) (control.SandboxToken, error)
	// CommandSandbox returns which sandbox a session belongs to, without asking the guest.
	CommandSandbox(ctx context.Context, id sandbox.CommandID) (sandbox.ID, error)

	GetOperation(ctx context.Context, id sandbox.OperationID, wait time.Duration) (operation.Operation, error)
	ListOperations(ctx context.Context, filter control.OperationFilter) (control.Page[operation.Operation], error)
	CancelOperation(ctx context.Context, id sandbox.OperationID) (operation.Operation, error)

	// CreateCommand registers a command session and, with start, starts it.
	CreateCommand(ctx context.Context, call control.Call, ref string, spec sandbox.CommandSpec, start bool) (control.CreatedCommand, error)
	// Exec runs a command to its end with the given standard input and returns its record and output, each stream
	// cut at 1 MiB. When ctx ends first, the command goes on.
	Exec(ctx context.Context, call control.Call, ref string, spec sandbox.CommandSpec, stdin []byte) (control.ExecResult, error)
	GetCommand(ctx context.Context, id sandbox.CommandID, wait time.Duration) (sandbox.Command, error)
	ListCommands(ctx context.Context, ref string, filter control.CommandFilter) (control.Page[sandbox.Command], error)
	// AttachCommand makes an attach token that expires no later than what by may do.
	AttachCommand(ctx context.Context, by auth.Principal, id sandbox.CommandID) (control.Attach, error)
	SignalCommand(ctx context.Context, id sandbox.CommandID, signal string) (sandbox.Command, error)
	// ResizeCommand changes the size of a command's terminal.
	ResizeCommand(ctx context.Context, id sandbox.CommandID, size sandbox.TerminalSize) (sandbox.Command, error)
	// KillCommand kills the process group (DELETE), or gives up one that was not started; for an ended command it
	// changes nothing.
	KillCommand(ctx context.Context, id sandbox.CommandID) (sandbox.Command, error)

	// Once runs do, unless a request with call's Idempotency-Key was answered before: that is replayed. A do that fails
	// leaves the key unused.
	Once(ctx context.Context, call control.Call, resource string, do func() error) (replayed bool, err error)

	// Transcript returns what is kept of a recorded session, as lines of JSON; also when its sandbox is gone.
	Transcript(ctx context.Context, id sandbox.CommandID) (io.ReadCloser, error)

	// ProxyFiles and ProxyStdin pass a body through to the gateway unread and answer w. action is what follows "files/"
	// in the path, "" for a file itself.
	ProxyFiles(w http.ResponseWriter, r *http.Request, ref, action string)
	ProxyStdin(w http.ResponseWriter, r *http.Request, id sandbox.CommandID)

	// ReadEvents returns what follows event after, waiting for it at most wait. An after below zero asks for the end of
	// the log. missed: events between after and the page are gone; go on at the page's Oldest-1.
	ReadEvents(ctx context.Context, after int64, filter control.EventFilter, wait time.Duration) (page control.EventPage, missed bool, err error)
	// SandboxID returns the id that ref stands for, which may be of a sandbox that is gone.
	SandboxID(ctx context.Context, ref string) (sandbox.ID, error)

	ListTemplates(ctx context.Context) ([]sandbox.Template, error)
	GetTemplate(ctx context.Context, ref string) (sandbox.Template, error)
	// ImportTemplate reads an archive to its end before it returns.
	ImportTemplate(ctx context.Context, call control.Call, spec control.ImportSpec) (control.Accepted, error)
	// DeleteTemplate takes a name away, or the content when the name was its last one or ref is a digest.
	DeleteTemplate(ctx context.Context, ref string) error
	Node(ctx context.Context) (control.NodeInfo, error)
	// Drain makes control refuse creates and recoveries, or take them again; over restarts.
	Drain(ctx context.Context, on bool) (control.DrainState, error)
	// Ledger compares what should be on the machine with what is; Reconcile removes what nothing stands for.
	Ledger(ctx context.Context) (control.Ledger, error)
	Reconcile(ctx context.Context, dryRun bool) ([]control.Repair, error)
	// Ready is nil when control can take work: its store, node and gateway answer.
	Ready(ctx context.Context) error
	// Metrics writes the metrics of all processes in the Prometheus text form.
	Metrics(ctx context.Context, w io.Writer) error
}
