package control_test

import (
	"slices"
	"time"

	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
)

// reference is the lifecycle as it is promised, in a few plain rules: no store, no goroutines, no time but what it is
// told. Each operation waits at its call of node until finish lets it go on.
type reference struct {
	boxes []*refBox
	ops   []*refOp
	keys  map[string]refKey
}

type refKey struct {
	body int
	op   *refOp
}

type refOp struct {
	id       sandbox.OperationID // "" until it has been looked up, of those that leases begin
	kind     string
	box      *refBox
	ifState  sandbox.State
	state    operation.State
	noChange bool
	code     sandbox.Code
	leased   bool
	restarts int // in which it was under way
}

type refBox struct {
	id             sandbox.ID
	state, desired sandbox.State
	reason         string
	alive          bool // its machine
	queue          []*refOp
	lease          *refLease
}

type refLease struct {
	ttl, left time.Duration
	expiry    sandbox.Expiry
}

// refCall is a lifecycle call.
type refCall struct {
	kind    string
	key     string // "" for none
	body    int
	busy    bool // if_busy=fail
	ifState sandbox.State
	broken  bool // the store cannot commit it
	lease   *refLease
}

func refPasses(s sandbox.State) bool { return s == sandbox.StateRunning || s == sandbox.StateFailed }

// become moves a box. A lease that was used up while it stood still begins anew, unless its own pause has failed.
func (b *refBox) become(state sandbox.State) {
	if l := b.lease; l != nil && refPasses(state) && !refPasses(b.state) && b.state != sandbox.StatePausing && l.left == 0 {
		l.left = l.ttl
	}
	if b.state = state; state == sandbox.StateRunning || state == sandbox.StatePaused {
		b.reason = ""
	}
}

// create accepts a new box.
func (m *reference) create(c refCall) (*refOp, sandbox.Code) {
	if op, code, seen := m.replay(c); seen {
		return op, code
	}
	if c.broken {
		return nil, sandbox.CodeInternal
	}
	b := &refBox{state: sandbox.StateCreating, desired: sandbox.StateRunning, lease: c.lease}
	m.boxes = append(m.boxes, b)
	op := m.add(b, c)
	op.state = operation.Running
	return op, ""
}

func (m *reference) replay(c refCall) (*refOp, sandbox.Code, bool) {
	k, seen := m.keys[c.key]
	switch {
	case c.key == "" || !seen:
		return nil, "", false
	case k.body != c.body:
		return nil, sandbox.CodeIdempotencyConflict, true
	}
	return k.op, "", true
}

// add queues an operation.
func (m *reference) add(b *refBox, c refCall) *refOp {
	op := &refOp{kind: c.kind, box: b, ifState: c.ifState, state: operation.Queued}
	b.queue = append(b.queue, op)
	m.bind(op, c)
	return op
}

func (m *reference) bind(op *refOp, c refCall) {
	if !slices.Contains(m.ops, op) {
		m.ops = append(m.ops, op)
	}
	if c.key != "" {
		m.keys[c.key] = refKey{c.body, op}
	}
}

// rule is what a verb does in a state: "" moves, "already", or a code.
func (b *refBox) rule(kind string) string {
	lost := b.reason == sandbox.ReasonCreateFailed || b.reason == sandbox.ReasonInterrupted
	switch s := b.state; {
	case kind == "pause" && s == sandbox.StateRunning, kind == "resume" && s == sandbox.StatePaused,
		kind == "recover" && s == sandbox.StateFailed && !lost:
		return ""
	case kind == "pause" && s == sandbox.StatePaused, kind != "pause" && s == sandbox.StateRunning:
		return "already"
	}
	return string(sandbox.CodeInvalidState)
}

// call accepts pause, resume, recover or delete.
func (m *reference) call(b *refBox, c refCall) (*refOp, sandbox.Code) {
	if op, code, seen := m.replay(c); seen {
		return op, code
	}
	deleting, remove := b.state == sandbox.StateDeleting, c.kind == "delete"
	waits := len(b.queue) > 0 && !deleting && !remove
	rule := b.rule(c.kind)
	switch {
	case b.state == sandbox.StateDeleted:
		return nil, sandbox.CodeNotFound
	case remove && deleting && c.broken && c.key != "":
		return nil, sandbox.CodeInternal
	case remove && deleting:
		m.bind(b.queue[0], c)
		return b.queue[0], ""
	case c.busy && len(b.queue) > 0:
		return nil, sandbox.CodeSandboxBusy
	case !waits && c.ifState != "" && c.ifState != b.state:
		return nil, sandbox.CodeStateMismatch
	case !waits && !remove && rule != "" && rule != "already":
		return nil, sandbox.Code(rule)
	case c.broken:
		return nil, sandbox.CodeInternal
	case remove: // it goes first
		for _, op := range b.queue {
			op.state, op.code = operation.Canceled, sandbox.CodeCanceled
		}
		b.queue = nil
		b.desired = sandbox.StateDeleted
		b.become(sandbox.StateDeleting)
		op := m.add(b, c)
		op.state = operation.Running
		return op, ""
	case !waits && rule == "already":
		op := m.add(b, c)
		b.queue = nil
		op.state, op.noChange = operation.Succeeded, true
		return op, ""
	}
	b.desired = map[string]sandbox.State{"pause": sandbox.StatePaused, "resume": sandbox.StateRunning, "recover": sandbox.StateRunning}[c.kind]
	op := m.add(b, c)
	b.next()
	return op, ""
}

// next claims what waits, until one acts.
func (b *refBox) next() {
	for len(b.queue) > 0 && b.queue[0].state == operation.Queued {
		op := b.queue[0]
		switch rule := b.rule(op.kind); {
		case op.ifState != "" && op.ifState != b.state:
			b.end(operation.Failed, sandbox.CodeStateMismatch)
		case rule == "already":
			op.noChange = true
			b.end(operation.Succeeded, "")
		case rule != "":
			b.end(operation.Failed, sandbox.Code(rule))
		default:
			op.state = operation.Running
			b.desired = sandbox.StateRunning
			via := sandbox.StateResuming
			if op.kind == "pause" {
				b.desired, via = sandbox.StatePaused, sandbox.StatePausing
			}
			b.become(via)
		}
	}
}

// end takes the first operation out of the queue.
func (b *refBox) end(state operation.State, code sandbox.Code) {
	b.queue[0].state, b.queue[0].code = state, code
	if b.queue = b.queue[1:]; len(b.queue) == 0 && (b.state == sandbox.StateRunning || b.state == sandbox.StatePaused) {
		b.desired = b.state
	}
}

// finish lets the call of node succeed, or fail, for the operation under way.
func (b *refBox) finish(works bool) {
	op := b.queue[0]
	switch {
	case op.kind == "delete" && !works:
		return // it is tried again
	case op.kind == "delete":
		b.become(sandbox.StateDeleted)
	case works && op.kind == "pause":
		b.become(sandbox.StatePaused)
	case works:
		b.alive = true
		b.become(sandbox.StateRunning)
	default:
		b.back(sandbox.ReasonCreateFailed)
	}
	if works {
		b.end(operation.Succeeded, "")
	} else {
		b.end(operation.Failed, sandbox.CodeVMMFailed)
	}
	b.next()
}

// back puts a box where it was before the operation under way.
func (b *refBox) back(reason string) {
	switch b.queue[0].kind {
	case "create":
		b.become(sandbox.StateFailed)
		b.reason = reason
	case "pause":
		b.become(sandbox.StateRunning)
	case "resume":
		b.become(sandbox.StatePaused)
	case "recover":
		b.become(sandbox.StateFailed)
	}
}

// exit ends the machine.
func (b *refBox) exit(reason string) {
	b.alive = false
	if b.state == sandbox.StateDeleting {
		return
	}
	b.become(sandbox.StateFailed)
	b.reason = reason
	if len(b.queue) > 0 {
		b.end(operation.Failed, sandbox.CodeVMMFailed)
		b.next()
	}
}

// restart: all goes on, but for a create that has been cut off five times.
func (m *reference) restart() {
	for _, b := range m.boxes {
		if b.state != sandbox.StateCreating {
			continue
		}
		if b.queue[0].restarts++; b.queue[0].restarts == 5 {
			b.back(sandbox.ReasonInterrupted)
			b.end(operation.Failed, sandbox.CodeInterrupted)
			b.next()
		}
	}
}

// cancel takes back what waits, and a transition under way.
func (op *refOp) cancel() sandbox.Code {
	b := op.box
	switch {
	case op.state == operation.Canceled:
		return ""
	case op.state.Ended(), op.kind == "delete", op.kind == "create":
		return sandbox.CodeInvalidState
	case op.state == operation.Running:
		b.back("")
		b.end(operation.Canceled, sandbox.CodeCanceled)
		b.next()
	default:
		op.state, op.code = operation.Canceled, sandbox.CodeCanceled
		b.queue = slices.DeleteFunc(b.queue, func(o *refOp) bool { return o == op })
	}
	return ""
}

// pass lets time pass; leases that are over do what they say.
func (m *reference) pass(d time.Duration) {
	for _, b := range m.boxes {
		l := b.lease
		if l == nil || !refPasses(b.state) {
			continue
		}
		if l.left = max(0, l.left-d); l.left > 0 || len(b.queue) > 0 {
			continue
		}
		kind := string(l.expiry)
		if kind == "delete" || b.state == sandbox.StateRunning {
			if op, _ := m.call(b, refCall{kind: kind}); op != nil {
				op.leased = true
			}
		}
	}
}

// patch changes a lease; ttl 0 removes it.
func (b *refBox) patch(ttl time.Duration, extend bool, expiry sandbox.Expiry) {
	switch l := b.lease; {
	case ttl == 0:
		b.lease = nil
	case l != nil && extend:
		l.left += ttl
	case l != nil:
		l.ttl, l.left = ttl, ttl
	default:
		b.lease = &refLease{ttl: ttl, left: ttl, expiry: sandbox.ExpireDelete}
	}
	if b.lease != nil && expiry != "" {
		b.lease.expiry = expiry
	}
}
