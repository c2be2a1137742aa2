// Package httpapitest has a Control and a data plane in memory, for tests of the API's handlers, its SDK and the
// command line. Sandboxes are records; commands are Go functions.
package httpapitest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/httpapi"
	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
)

// Keys that a Fake accepts.
const (
	AdminKey     = "e2b_0000000000000000000000000000000000000001"
	DeveloperKey = "e2b_0000000000000000000000000000000000000002"
)

// Templates whose sandboxes do not simply become ready.
const (
	Template       = "mini"   // becomes ready at once
	TemplateSlow   = "slow"   // stays in creating until Finish
	TemplateBroken = "broken" // fails
)

// Fake is an httpapi.Control. Its methods are safe for concurrent use.
type Fake struct {
	mu         sync.Mutex
	changed    chan struct{} // closed and replaced at each change
	now        time.Time
	sandboxes  map[sandbox.ID]*sandbox.Sandbox
	operations map[sandbox.OperationID]*operation.Operation
	order      []sandbox.OperationID
	commands   map[sandbox.CommandID]*process
	cmdOrder   []sandbox.CommandID
	seen       map[string]seen
	events     []control.Event // what AddEvent was given and DropEvents has left
	lastEvent  int64           // number of the last one
	restarted  chan struct{}   // closed and replaced by DropStreams
	files      map[sandbox.ID]*os.Root
	imported   []sandbox.Template
	notReady   error
	draining   bool
	reconciled bool // the stray object is gone
	dataURL    string
	dropped    chan struct{} // closed and replaced by DropAttachments
	programs   map[string]Program
	signer     *auth.Signer
	steps      chan struct{}
	done       chan struct{}
}

type seen struct {
	fingerprint [32]byte
	id          string
}

var _ httpapi.Control = (*Fake)(nil)

// NewFake returns an empty Fake that knows the programs of Programs.
func NewFake() *Fake {
	return &Fake{
		changed: make(chan struct{}), dropped: make(chan struct{}), restarted: make(chan struct{}), steps: make(chan struct{}), done: make(chan struct{}), now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		sandboxes: map[sandbox.ID]*sandbox.Sandbox{}, operations: map[sandbox.OperationID]*operation.Operation{},
		commands: map[sandbox.CommandID]*process{}, seen: map[string]seen{}, files: map[sandbox.ID]*os.Root{}, programs: Programs(), signer: auth.NewSigner(),
	}
}

// tick is a clock on which no two moments are equal.
func (f *Fake) tick() time.Time {
	f.now = f.now.Add(time.Second)
	return f.now
}

// notify wakes who waits for a change; call it with the lock held.
func (f *Fake) notify() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// await calls done under the lock until it is true, the wait is over or ctx ends.
func (f *Fake) await(ctx context.Context, wait time.Duration, done func() bool) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		f.mu.Lock()
		ok, changed := done(), f.changed
		f.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// Close lets programs that wait for something end, and removes the files.
func (f *Fake) Close() {
	close(f.done)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, root := range f.files {
		_ = errors.Join(root.Close(), os.RemoveAll(root.Name()))
	}
}

// Step lets a program that waits for it go on.
func (f *Fake) Step(ctx context.Context) error {
	select {
	case f.steps <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// AwaitOutput waits until a command that runs program has written text to its standard output.
func (f *Fake) AwaitOutput(ctx context.Context, program, text string) error {
	for {
		f.mu.Lock()
		changed := f.changed
		for _, p := range f.commands {
			if p.cmd.Spec.Argv[0] != program {
				continue
			}
			p.mu.Lock()
			found := bytes.Contains(p.stdout, []byte(text))
			p.mu.Unlock()
			if found {
				f.mu.Unlock()
				return nil
			}
		}
		f.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("no %s has written %q: %w", program, text, ctx.Err())
		}
	}
}

// AwaitSandbox waits until there is a sandbox of this name.
func (f *Fake) AwaitSandbox(ctx context.Context, name string) error {
	found := false
	f.await(ctx, time.Hour, func() bool {
		found = f.find(name) != nil
		return found
	})
	if !found {
		return fmt.Errorf("no sandbox %s: %w", name, ctx.Err())
	}
	return nil
}

// SetNotReady makes Ready answer err.
func (f *Fake) SetNotReady(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.notReady = err
}

// Authenticate knows AdminKey, DeveloperKey and the tokens of CreateToken.
func (f *Fake) Authenticate(_ context.Context, key string) (auth.Principal, error) {
	switch key {
	case AdminKey:
		return auth.Principal{KeyID: "admin", Role: auth.RoleAdmin}, nil
	case DeveloperKey:
		return auth.Principal{KeyID: "dev", Role: auth.RoleDeveloper}, nil
	}
	return f.tokenHolder(key)
}

// replay looks an idempotency key up. id is what it stood for, "" when it is new.
func (f *Fake) replay(call control.Call) (id string, err error) {
	if call.Idempotency == nil {
		return "", nil
	}
	old, ok := f.seen[idempotencyKey(call)]
	if ok && old.fingerprint != call.Idempotency.Fingerprint {
		return "", &sandbox.Error{Code: sandbox.CodeIdempotencyConflict, Message: "the key was used with another body"}
	}
	return old.id, nil
}

func (f *Fake) remember(call control.Call, id string) {
	if call.Idempotency != nil {
		f.seen[idempotencyKey(call)] = seen{fingerprint: call.Idempotency.Fingerprint, id: id}
	}
}

// Once runs do unless the key of call was used before.
func (f *Fake) Once(_ context.Context, call control.Call, resource string, do func() error) (bool, error) {
	f.mu.Lock()
	id, err := f.replay(call)
	f.mu.Unlock()
	if err != nil || id != "" {
		return id != "", err
	}
	if err := do(); err != nil {
		return false, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.remember(call, resource)
	return false, nil
}

func idempotencyKey(call control.Call) string {
	return call.Principal.ID() + "\x00" + call.Idempotency.Scope + "\x00" + call.Idempotency.Key
}

// ListTemplates lists the three templates and those imported; mini has two tags.
func (f *Fake) ListTemplates(context.Context) ([]sandbox.Template, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append(f.builtIn(), f.imported...), nil
}

func (f *Fake) builtIn() []sandbox.Template {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	return []sandbox.Template{
		{Digest: digest(Template), Names: []string{"mini:latest", "mini:v1"}, SizeBytes: 80 << 20, MinDiskMiB: 128, User: "user", Workdir: "/home/user", CreatedAt: at},
		{Digest: digest(TemplateSlow), Names: []string{"slow:latest"}, SizeBytes: 1 << 20, CreatedAt: at.Add(time.Hour)},
		{Digest: digest(TemplateBroken), Names: []string{"ns/broken:latest"}, SizeBytes: 1 << 20, CreatedAt: at.Add(2 * time.Hour)},
	}
}

// GetTemplate finds by name, name:tag or digest.
func (f *Fake) GetTemplate(ctx context.Context, ref string) (sandbox.Template, error) {
	all, err := f.ListTemplates(ctx)
	if err != nil {
		return sandbox.Template{}, err
	}
	for _, t := range all {
		if t.Digest == ref || slices.Contains(t.Names, ref) || slices.Contains(t.Names, ref+":latest") {
			return t, nil
		}
	}
	return sandbox.Template{}, &sandbox.Error{Code: sandbox.CodeTemplateNotFound, Message: "there is no such template", Cause: ref, Remedy: "GET /v1/templates lists them"}
}

// Node describes a machine that does not exist.
func (f *Fake) Node(context.Context) (control.NodeInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return control.NodeInfo{InstallationID: "abc123", DefaultDriver: "fake", PoolKind: "copy", PoolTotal: 64 << 30, PoolFree: 60 << 30,
		CPUs: 2, MemoryBytes: 8 << 30, MemoryFree: 4 << 30, Kernel: "6.1.0", Sandboxes: len(f.sandboxes), MaxSandboxes: 100, Draining: f.draining,
		Drivers: []control.DriverInfo{{Name: "fake", Available: true, Isolation: "none", Version: "1"},
			{Name: "qemu", Reason: "qemu-system-x86_64 is not installed"}}}, nil
}

// Drain refuses creates from now on, or takes them again.
func (f *Fake) Drain(_ context.Context, on bool) (control.DrainState, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.draining = on
	return control.DrainState{Draining: on, Sandboxes: len(f.sandboxes)}, nil
}

// Ready is what SetNotReady said, else nil.
func (f *Fake) Ready(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.notReady
}

// Metrics writes one metric.
func (f *Fake) Metrics(_ context.Context, w io.Writer) error {
	_, err := io.WriteString(w, "# TYPE space_sandboxes gauge\nspace_sandboxes 0\n")
	return err
}

// page cuts a sorted list; a cursor is the id of the last item before it.
func page[T any](items []T, req control.PageRequest, id func(T) string, created func(T) time.Time) (control.Page[T], error) {
	slices.SortFunc(items, func(a, b T) int {
		order := cmp.Or(created(b).Compare(created(a)), cmp.Compare(id(b), id(a)))
		if req.Ascending {
			return -order
		}
		return order
	})
	out := control.Page[T]{}
	if req.Count {
		total := len(items)
		out.Total = &total
	}
	if req.Cursor != "" {
		i := slices.IndexFunc(items, func(v T) bool { return id(v) == req.Cursor })
		if i < 0 {
			return out, sandbox.Errorf(sandbox.CodeInvalidArgument, "the cursor is not from this list")
		}
		items = items[i+1:]
	}
	if len(items) > req.Limit {
		items = items[:req.Limit]
		out.NextCursor = id(items[req.Limit-1])
	}
	out.Items = items
	return out, nil
}
