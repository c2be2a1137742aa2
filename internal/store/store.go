// Package store is the durable record of control: what was asked for, what was observed, and what was promised to
// clients. The contract is in this file; drivers are sub-packages (sqlite; memory for tests) and all pass the suite in
// storetest.
//
// # A worked example: a create
//
//	err := s.Update(ctx, func(tx store.Tx) error {
//		if err := tx.InsertSandbox(box); err != nil { // ErrNameTaken when a live sandbox has the name
//			return err
//		}
//		if err := tx.InsertOperation(op); err != nil {
//			return err
//		}
//		return tx.InsertIdempotency(entry)
//	})
//
// All three rows exist after Update returned nil, also after a power cut; none of them exists after an error.
//
// # Terms
//
// A sandbox is live until its state is deleted. Its record stays for a while then, without commands, so that replays
// and lists of deleted ones can be answered; Purge removes it.
// A revision counts the changes of one sandbox or command record. An update names the revision it was made from and
// fails with ErrConflict when the record has changed since (compare-and-set).
// A cursor is opaque text that marks a place in one list. It stays valid when rows are added or removed.
//
// # Promises
//
//   - Update is atomic, isolated from every other Update (they run one after another) and durable once it returned
//     nil. Several may be made durable by one write to the disk.
//   - A read sees all updates that returned before it began.
//   - An operation that has ended never changes again.
//   - Records are deep copies: changing what was returned or passed changes nothing in the store.
//   - Events are read in the order of commits: once an event was read, none with a lower number will appear.
//   - Times keep nanoseconds and are UTC; the zero time stays zero.
package store

import (
	"context"
	"errors"
	"time"

	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
)

// The errors that callers tell apart with errors.Is.
var (
	// ErrNotFound: there is no such record.
	ErrNotFound = errors.New("not found")
	// ErrExists: a record with this id (or, for idempotency entries, this principal, scope and key) is there already.
	ErrExists = errors.New("exists already")
	// ErrNameTaken: another live sandbox has this name.
	ErrNameTaken = errors.New("name taken")
	// ErrConflict: the record has another revision than the update was made from, or is an operation that has ended.
	ErrConflict = errors.New("changed in the meantime")
	// ErrBadCursor: the cursor was not made by this list.
	ErrBadCursor = errors.New("bad cursor")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("store closed")
)

// Store is the durable record. All methods are safe for concurrent use.
type Store interface {
	Reader

	// Update runs fn and makes its writes durable, all or nothing; an error of fn is returned as it is. When ctx ends
	// before fn began, nothing happens and its error is returned; afterwards ctx has no influence. fn runs while
	// nobody else can write: it must be quick, must use only tx, must not keep tx, and must not panic. It may be run
	// again after a failed attempt, so it must set, not add to, what it captures.
	Update(ctx context.Context, fn func(tx Tx) error) error

	// Commits returns how many times the store has made something durable since it was opened.
	Commits() int64

	// Close ends the store after the updates under way; later calls fail with ErrClosed. Closing twice is harmless.
	Close() error
}

// Reader is what Store and Tx can look up. Single look-ups that find nothing fail with ErrNotFound.
type Reader interface {
	// Sandbox returns a sandbox by id, live or deleted.
	Sandbox(ctx context.Context, id sandbox.ID) (sandbox.Sandbox, error)
	// SandboxByName returns the live sandbox of that name.
	SandboxByName(ctx context.Context, name string) (sandbox.Sandbox, error)
	// Sandboxes returns one page.
	Sandboxes(ctx context.Context, filter SandboxFilter) (Page[sandbox.Sandbox], error)
	// LiveSandboxes returns every sandbox that is not deleted, oldest first.
	LiveSandboxes(ctx context.Context) ([]sandbox.Sandbox, error)
	// Usage sums what sandboxes with a machine hold: all but the failed and deleted ones (a paused machine keeps its
	// memory), those of exceptDriver left out.
	Usage(ctx context.Context, exceptDriver string) (Usage, error)
	// EndingLeases returns the sandboxes whose lease is running, those that end first, first; at most limit.
	EndingLeases(ctx context.Context, limit int) ([]sandbox.Sandbox, error)

	Operation(ctx context.Context, id sandbox.OperationID) (operation.Operation, error)
	Operations(ctx context.Context, filter OperationFilter) (Page[operation.Operation], error)
	// UnfinishedOperations returns all that are queued or running, oldest first.
	UnfinishedOperations(ctx context.Context) ([]operation.Operation, error)
	// OpenOperations returns those of one resource that are queued or running, in the order in which they were inserted.
	OpenOperations(ctx context.Context, resource operation.Resource) ([]operation.Operation, error)

	Command(ctx context.Context, id sandbox.CommandID) (sandbox.Command, error)
	// CommandByProcess finds a session by the process it stands for.
	CommandByProcess(ctx context.Context, box sandbox.ID, process sandbox.ProcessID) (sandbox.Command, error)
	Commands(ctx context.Context, box sandbox.ID, filter CommandFilter) (Page[sandbox.Command], error)
	// OpenCommands returns all sessions of a sandbox that have not ended, oldest first.
	OpenCommands(ctx context.Context, box sandbox.ID) ([]sandbox.Command, error)
	// LastCommands returns the newest n sessions of a sandbox, and all that have not ended, oldest first.
	LastCommands(ctx context.Context, box sandbox.ID, n int) ([]sandbox.Command, error)

	// Templates returns the templates of the last ReplaceTemplates, by their first name.
	Templates(ctx context.Context) ([]sandbox.Template, error)
	// Template returns a template by digest, also one that is gone but still used by a live sandbox.
	Template(ctx context.Context, digest string) (sandbox.Template, error)

	Key(ctx context.Context, hash auth.KeyHash) (Key, error)
	// Idempotency returns the entry of a request.
	Idempotency(ctx context.Context, id IdempotencyID) (IdempotencyEntry, error)
	// Events returns what follows event after and matches, in order: at most limit (1 to MaxEvents) events, out of the
	// next MaxEventScan. To read on, ask again with the page's Next.
	Events(ctx context.Context, after int64, filter EventFilter, limit int) (EventPage, error)
	// Meta returns a small named value.
	Meta(ctx context.Context, name string) (string, error)
}

// Tx is one transaction. What it reads includes what it has written.
type Tx interface {
	Reader

	// InsertSandbox adds a record; its revision becomes 1.
	InsertSandbox(s sandbox.Sandbox) error
	// UpdateSandbox replaces the record, but for CreatedAt, if it still has s.Revision and returns it with the next one.
	UpdateSandbox(s sandbox.Sandbox) (sandbox.Sandbox, error)

	InsertOperation(op operation.Operation) error
	// UpdateOperation replaces an operation that has not ended, but for Kind, Resource and CreatedAt.
	UpdateOperation(op operation.Operation) error

	// InsertCommand adds a record; its revision becomes 1.
	InsertCommand(c sandbox.Command) error
	// UpdateCommand replaces the record if it still has c.Revision and returns it with the next one.
	UpdateCommand(c sandbox.Command) (sandbox.Command, error)
	// DeleteCommand removes one session; none is no error.
	DeleteCommand(id sandbox.CommandID) error
	// DeleteCommands removes all sessions of a sandbox.
	DeleteCommands(box sandbox.ID) error

	// ReplaceTemplates makes list what Templates returns. Templates that are gone are forgotten once no live sandbox
	// uses them.
	ReplaceTemplates(list []sandbox.Template) error

	// InsertKey adds a key; a hash that is there already is ErrExists.
	InsertKey(k Key) error
	// InsertIdempotency adds an entry; one of the same IdempotencyID is ErrExists.
	InsertIdempotency(e IdempotencyEntry) error
	// DeleteIdempotency removes an entry; none is no error.
	DeleteIdempotency(id IdempotencyID) error
	// AppendEvent adds an event to the log; its Seq is set by the store.
	AppendEvent(e Event) error
	// PurgeEvents removes events from the beginning of the log, at most limit, and returns how many. An event goes when
	// it was made before a time or when more than keep are there; behind one that stays, all stay.
	PurgeEvents(before time.Time, keep, limit int64) (int64, error)

	// SetMeta sets a small named value.
	SetMeta(name, value string) error

	// Purge removes idempotency entries made before idempotency, and ended operations and deleted sandboxes that ended
	// before records.
	Purge(idempotency, records time.Time) error
}

// Key is the record of an API key.
type Key struct {
	ID        string // key_ and 20 hex digits
	Hash      auth.KeyHash
	Role      auth.Role
	Name      string
	CreatedAt time.Time
}

// IdempotencyID identifies a request of a client.
type IdempotencyID struct {
	Principal string // id of the API key, or of the sandbox token
	Scope     string // method, route and resource
	Key       string // the client's Idempotency-Key
}

// IdempotencyEntry remembers what a request led to.
type IdempotencyEntry struct {
	IdempotencyID
	Fingerprint [32]byte // of the body
	ResultID    string   // id of the operation or command session
	CreatedAt   time.Time
}

// Usage is what machines hold of the host.
type Usage struct {
	Sandboxes int
	MemoryMiB int64
	VCPUs     int64
}
