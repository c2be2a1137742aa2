package control

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
)

// outbox is the store as all of control uses it. Whatever changes a sandbox, operation, command or template through it
// also writes, in the same transaction, the event that tells so; and a sandbox that changes its state takes its lease
// along. Nobody has to remember either.
type outbox struct {
	store.Store
	now       func() time.Time
	dataPlane string
	leases    *leaseClock
	news      *pulse // of events that can be read
	sweep     *alarm // of leases that end
}

// Update implements store.Store.
func (o *outbox) Update(ctx context.Context, fn func(tx store.Tx) error) error {
	defer o.leases.hold()()
	return o.update(ctx, fn)
}

func (o *outbox) update(ctx context.Context, fn func(tx store.Tx) error) error {
	var t *outboxTx
	err := o.Store.Update(ctx, func(tx store.Tx) error {
		t = &outboxTx{Tx: tx, outbox: o, boxes: map[sandbox.ID]sandbox.Sandbox{}}
		if err := fn(t); err != nil {
			return err
		}
		return t.flush()
	})
	if err != nil || t == nil {
		return err
	}
	if len(t.events) > 0 {
		o.news.beat()
	}
	if !t.ends.IsZero() {
		o.sweep.notLaterThan(t.ends)
	}
	return nil
}

// outboxTx is one transaction of an outbox.
type outboxTx struct {
	store.Tx
	outbox *outbox
	boxes  map[sandbox.ID]sandbox.Sandbox // as they were read or written last
	events []store.Event
	op     sandbox.OperationID // the one operation that is written, or the last of several
	ops    int                 // how many different ones
	ends   time.Time           // when the first of the leases that were written ends
}

// tell adds an event to what is written at the end.
func (t *outboxTx) tell(kind store.EventType, box sandbox.ID, op sandbox.OperationID, object []byte, err error) error {
	if err == nil {
		t.events = append(t.events, store.Event{Type: kind, SandboxID: box, OperationID: op, Object: object})
	}
	return err
}

// flush writes the events. What changed together with one operation, that operation has changed.
func (t *outboxTx) flush() error {
	now := t.outbox.now().UTC()
	for _, e := range t.events {
		e.Time = now
		if e.OperationID == "" && t.ops == 1 {
			e.OperationID = t.op
		}
		if err := t.AppendEvent(e); err != nil {
			return err
		}
	}
	return nil
}

// Sandbox implements store.Reader.
func (t *outboxTx) Sandbox(ctx context.Context, id sandbox.ID) (sandbox.Sandbox, error) {
	return t.seen(t.Tx.Sandbox(ctx, id))
}

// SandboxByName implements store.Reader.
func (t *outboxTx) SandboxByName(ctx context.Context, name string) (sandbox.Sandbox, error) {
	return t.seen(t.Tx.SandboxByName(ctx, name))
}

func (t *outboxTx) seen(box sandbox.Sandbox, err error) (sandbox.Sandbox, error) {
	if err == nil {
		t.boxes[box.ID] = box.Clone()
	}
	return box, err
}

// InsertSandbox implements store.Tx.
func (t *outboxTx) InsertSandbox(box sandbox.Sandbox) error {
	if err := t.Tx.InsertSandbox(box); err != nil {
		return err
	}
	box.Revision = 1
	t.boxes[box.ID] = box
	return t.tellSandbox(box)
}

func (t *outboxTx) tellSandbox(box sandbox.Sandbox) error {
	if l := box.Lease; l != nil && !l.ExpiresAt.IsZero() && (t.ends.IsZero() || l.ExpiresAt.Before(t.ends)) {
		t.ends = l.ExpiresAt
	}
	object, err := sandboxObject(box, t.outbox.dataPlane)
	return t.tell(store.EventSandbox, box.ID, box.OperationID, object, err)
}

// UpdateSandbox implements store.Tx.
func (t *outboxTx) UpdateSandbox(box sandbox.Sandbox) (sandbox.Sandbox, error) {
	old, known := t.boxes[box.ID]
	if !known && box.Lease != nil {
		var err error
		if old, err = t.Sandbox(context.Background(), box.ID); err != nil {
			return box, err
		}
		known = true
	}
	change := ""
	if known {
		change = leaseChange(old.Lease, box.Lease)
	}
	if box.Lease != nil {
		box = box.Clone()
		box.Lease.Move(old.State, box.State, t.outbox.leases.now())
	}
	box, err := t.Tx.UpdateSandbox(box)
	if err != nil {
		return box, err
	}
	t.boxes[box.ID] = box.Clone()
	if err := t.tellSandbox(box); err != nil || change == "" {
		return box, err
	}
	return box, t.tellLease(box, "", change)
}

func (t *outboxTx) tellLease(box sandbox.Sandbox, op sandbox.OperationID, change string) error {
	object, err := leaseObject(box.Lease, change)
	return t.tell(store.EventLease, box.ID, op, object, err)
}

// leaseExpired tells, together with op, that the lease of box has ended.
func leaseExpired(tx store.Tx, box sandbox.Sandbox, op sandbox.OperationID) error {
	return tx.(*outboxTx).tellLease(box, op, changeExpired) //nolint:forcetypeassert // control has no other
}

// InsertOperation implements store.Tx.
func (t *outboxTx) InsertOperation(op operation.Operation) error {
	if err := t.Tx.InsertOperation(op); err != nil {
		return err
	}
	return t.tellOperation(op)
}

// UpdateOperation implements store.Tx.
func (t *outboxTx) UpdateOperation(op operation.Operation) error {
	if err := t.Tx.UpdateOperation(op); err != nil {
		return err
	}
	return t.tellOperation(op)
}

func (t *outboxTx) tellOperation(op operation.Operation) error {
	if t.op != op.ID {
		t.op = op.ID
		t.ops++
	}
	var box sandbox.ID
	if op.Resource.Type == resourceSandbox {
		box = sandbox.ID(op.Resource.ID)
	}
	object, err := operationObject(op)
	return t.tell(store.EventOperation, box, op.ID, object, err)
}

// InsertCommand implements store.Tx.
func (t *outboxTx) InsertCommand(cmd sandbox.Command) error {
	if err := t.Tx.InsertCommand(cmd); err != nil {
		return err
	}
	return t.tellCommand(cmd)
}

// UpdateCommand implements store.Tx.
func (t *outboxTx) UpdateCommand(cmd sandbox.Command) (sandbox.Command, error) {
	cmd, err := t.Tx.UpdateCommand(cmd)
	if err != nil {
		return cmd, err
	}
	return cmd, t.tellCommand(cmd)
}

func (t *outboxTx) tellCommand(cmd sandbox.Command) error {
	object, err := commandObject(cmd)
	return t.tell(store.EventCommand, cmd.SandboxID, "", object, err)
}

// DeleteCommand implements store.Tx.
func (t *outboxTx) DeleteCommand(id sandbox.CommandID) error {
	cmd, err := t.Command(context.Background(), id)
	if isMissing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := t.Tx.DeleteCommand(id); err != nil {
		return err
	}
	return t.tellGone(cmd)
}

// DeleteCommands implements store.Tx. The sessions that had ended said so before.
func (t *outboxTx) DeleteCommands(box sandbox.ID) error {
	open, err := t.OpenCommands(context.Background(), box)
	if err != nil {
		return err
	}
	for _, cmd := range open {
		if err := t.tellGone(cmd); err != nil {
			return err
		}
	}
	return t.Tx.DeleteCommands(box)
}

// tellGone tells the end of a session whose record goes away with it.
func (t *outboxTx) tellGone(cmd sandbox.Command) error {
	if !cmd.State.Ended() {
		cmd.State, cmd.Reason, cmd.EndedAt = sandbox.CommandLost, string(sandbox.StateDeleted), t.outbox.now().UTC()
	}
	return t.tellCommand(cmd)
}

// ReplaceTemplates implements store.Tx. Only what differs is told.
func (t *outboxTx) ReplaceTemplates(list []sandbox.Template) error {
	before, err := t.Templates(context.Background())
	if err != nil {
		return err
	}
	if err := t.Tx.ReplaceTemplates(list); err != nil {
		return err
	}
	for _, tpl := range list {
		i := slices.IndexFunc(before, func(old sandbox.Template) bool { return old.Digest == tpl.Digest })
		if i >= 0 && slices.Equal(before[i].Names, tpl.Names) {
			continue
		}
		if err := t.tellTemplate(tpl, false); err != nil {
			return err
		}
	}
	for _, old := range before {
		if slices.ContainsFunc(list, func(tpl sandbox.Template) bool { return old.Digest == tpl.Digest }) {
			continue
		}
		if err := t.tellTemplate(old, true); err != nil {
			return err
		}
	}
	return nil
}

func (t *outboxTx) tellTemplate(tpl sandbox.Template, gone bool) error {
	object, err := templateObject(tpl, gone)
	return t.tell(store.EventTemplate, "", "", object, err)
}

// pulse wakes everybody who waits for the next beat.
type pulse struct {
	mu   sync.Mutex
	next chan struct{}
}

func newPulse() *pulse { return &pulse{next: make(chan struct{})} }

// wait returns a channel that is closed at the next beat. Take it before looking, so that no change falls between.
func (p *pulse) wait() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.next
}

func (p *pulse) beat() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.next)
	p.next = make(chan struct{})
}
