package control_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"pgregory.net/rapid"

	"github.com/space-sandbox/space/api/proto/gateway/v1/gatewayv1connect"
	"github.com/space-sandbox/space/api/proto/node/v1/nodev1connect"
	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/rpc"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
	"github.com/space-sandbox/space/internal/store/memory"
)

// deed is one thing that happens in a history, drawn before it begins. Numbers choose among what exists then.
type deed struct {
	What          string
	Box, Op, Body int
	Key           int
	State         sandbox.State
	Busy, Broken  bool
	TTL           time.Duration
	Expiry        sandbox.Expiry
	Time          time.Duration
}

func drawDeed() *rapid.Generator[deed] {
	return rapid.Custom(func(t *rapid.T) deed {
		d := deed{What: rapid.SampledFrom([]string{"create", "create", "pause", "pause", "resume", "resume", "recover", "delete", "finish", "finish", "finish",
			"finish", "finish", "fail", "exit", "lease", "cancel", "wait", "jump", "control", "node", "gateway"}).Draw(t, "what")}
		d.Box = rapid.IntRange(0, 2).Draw(t, "box")
		switch d.What {
		case "create", "pause", "resume", "recover", "delete":
			d.Key, d.Body = rapid.IntRange(0, 3).Draw(t, "key"), rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(t, "body")
			d.Broken = rapid.SampledFrom([]bool{false, false, false, true}).Draw(t, "broken")
			switch rapid.IntRange(0, 7).Draw(t, "condition") {
			case 0:
				d.Busy = true
			case 1:
				d.State = rapid.SampledFrom([]sandbox.State{sandbox.StateRunning, sandbox.StatePaused}).Draw(t, "state")
			}
			fallthrough
		case "lease":
			d.TTL = rapid.SampledFrom([]time.Duration{0, 500 * time.Second, 2000 * time.Second}).Draw(t, "ttl")
			d.Expiry = rapid.SampledFrom([]sandbox.Expiry{"", sandbox.ExpireDelete, sandbox.ExpirePause}).Draw(t, "expiry")
			d.Body += 2 * rapid.IntRange(0, 1).Draw(t, "extend")
		case "finish", "exit":
			d.Broken = rapid.SampledFrom([]bool{false, false, true}).Draw(t, "broken")
		case "cancel":
			d.Op = rapid.IntRange(0, 20).Draw(t, "op")
		case "wait":
			d.Time = rapid.SampledFrom([]time.Duration{10 * time.Second, 600 * time.Second, 3000 * time.Second}).Draw(t, "time")
		case "jump":
			d.Time = rapid.SampledFrom([]time.Duration{-1500 * time.Second, -30 * time.Second, 30 * time.Second, 1500 * time.Second}).Draw(t, "time")
		}
		return d
	})
}

// TestHistoriesAgainstReference runs random histories of calls, ends of machines, restarts, jumps of the clock and errors of
// the store, and compares all that can be read with the reference after each step. Time is that of a bubble.
func TestHistoriesAgainstReference(t *testing.T) {
	t.Parallel()
	hundreds := 20
	if testing.Short() { // with the race detector
		hundreds = 2
	}
	for n := range hundreds { // rapid.Check runs 100 of them
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(rt *rapid.T) {
				deeds := rapid.SliceOfN(drawDeed(), 1, 40).Draw(rt, "deeds")
				difference := ""
				synctest.Test(t, func(*testing.T) { difference = play(deeds) })
				if difference != "" {
					rt.Fatal(difference)
				}
			})
		})
	}
}

// errBroken is what a store says that is made to fail.
var errBroken = errors.New("this store does not commit now")

// fallible is a store whose next commits fail, as on a disk that is full.
type fallible struct {
	store.Store
	failures atomic.Int64
}

func (s *fallible) Update(ctx context.Context, fn func(store.Tx) error) error {
	return s.Store.Update(ctx, func(tx store.Tx) error {
		if err := fn(tx); err != nil {
			return err
		}
		if s.failures.Load() > 0 {
			s.failures.Add(-1)
			return errBroken
		}
		return nil
	})
}

// stage is a control with a store, node and gateway in a bubble.
type stage struct {
	ref           *reference
	store         *fallible
	node          *fakeNode
	toNode, toGW  *direct
	signer        *auth.Signer
	jumped        atomic.Int64 // of the wall clock
	began         time.Time
	c             *control.Control
	ended         chan error
	mu            sync.Mutex
	waiting       map[sandbox.ID]chan error // calls of node that wait for finish
	trace, issues strings.Builder
}

// play runs one history in a bubble and returns the first difference, with what led to it.
func play(deeds []deed) string {
	s := &stage{ref: &reference{keys: map[string]refKey{}}, store: &fallible{Store: memory.New()}, node: newFakeNode(), signer: auth.NewSigner(),
		began: time.Now(), waiting: map[sandbox.ID]chan error{}}
	s.node.setHook(s.gate)
	node, gw := http.NewServeMux(), http.NewServeMux()
	node.Handle(nodev1connect.NewNodeServiceHandler(s.node, connect.WithInterceptors(rpc.Errors())))
	gw.Handle(gatewayv1connect.NewGatewayServiceHandler(newFakeGateway(newFakeGuests()), connect.WithInterceptors(rpc.Errors())))
	s.toNode, s.toGW = newDirect(node), newDirect(gw)
	s.start()
	defer s.stop()
	s.settle(7 * time.Second)
	for _, d := range deeds {
		fmt.Fprintf(&s.trace, "%+v\n", d)
		s.do(d)
		s.settle(7 * time.Second)
		if s.compare(); s.issues.Len() > 0 {
			return s.trace.String() + s.issues.String()
		}
	}
	return ""
}

func (s *stage) now() time.Time { return time.Now().Add(time.Duration(s.jumped.Load())) }

func (s *stage) start() {
	opt := connect.WithInterceptors(rpc.Errors())
	nodeHTTP, gatewayHTTP := &http.Client{Transport: s.toNode}, &http.Client{Transport: s.toGW}
	c, err := control.New(context.Background(), control.Deps{Store: s.store, Now: s.now, Elapsed: func() time.Duration { return time.Since(s.began) },
		Node: nodev1connect.NewNodeServiceClient(nodeHTTP, rpc.BaseURL, opt), Gateway: gatewayv1connect.NewGatewayServiceClient(gatewayHTTP, rpc.BaseURL, opt),
		GatewayHTTP: gatewayHTTP, Signer: s.signer, Logger: slog.New(slog.DiscardHandler), DataPlaneURL: "http://127.0.0.1:7071",
		Limits: control.Limits{CreateDeadline: 1e6 * time.Second, PauseDeadline: 1e6 * time.Second, DeleteTimeout: 1e6 * time.Second}})
	if err != nil {
		panic(err)
	}
	s.c, s.ended = c, make(chan error, 1)
	go func() { s.ended <- c.Run(context.Background()) }()
}

// stop drops all but the store and the machines.
func (s *stage) stop() {
	if err := errors.Join(s.c.Close(), <-s.ended); err != nil {
		s.differ("control ends with %v", err)
	}
}

// gate holds the call of node that an operation is for.
func (s *stage) gate(ctx context.Context, call, id string) error {
	box, err := s.store.Store.Sandbox(ctx, sandbox.ID(id))
	if err != nil {
		return nil //nolint:nilerr // it is not about a sandbox
	}
	switch state := box.State; {
	case call == "EnsureMachine" && (state == sandbox.StateCreating || state == sandbox.StateResuming), call == "DeleteMachine" && state == sandbox.StateDeleting,
		call == "PauseMachine" && state == sandbox.StatePausing, call == "ResumeMachine" && state == sandbox.StateResuming:
	default:
		return nil
	}
	ch := make(chan error)
	s.mu.Lock()
	s.waiting[box.ID] = ch
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.waiting[box.ID] == ch {
			delete(s.waiting, box.ID)
		}
	}()
	select {
	case err := <-ch:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *stage) differ(format string, args ...any) { fmt.Fprintf(&s.issues, format+"\n", args...) }

// settle lets time pass until nothing moves, and not so that a lease might have ended or not.
func (s *stage) settle(d time.Duration) {
	for d > 0 {
		time.Sleep(d)
		synctest.Wait()
		s.ref.pass(d)
		d = 0
		for _, b := range s.ref.boxes {
			if b.lease != nil && refPasses(b.state) && b.lease.left > 0 && b.lease.left < 100*time.Second {
				d = 200 * time.Second
			}
		}
	}
}

func (s *stage) do(d deed) {
	if len(s.ref.boxes) == 0 && d.What != "create" && d.What != "jump" {
		return
	}
	var b *refBox
	if len(s.ref.boxes) > 0 {
		b = s.ref.boxes[max(0, len(s.ref.boxes)-1-d.Box)] // the newest ones
	}
	switch d.What {
	case "create", "pause", "resume", "recover", "delete":
		s.call(b, d)
	case "finish", "fail":
		s.finish(b, d)
	case "exit":
		if b.alive && b.state != sandbox.StateDeleted {
			s.breakStore(d)
			s.node.exit(string(b.id), sandbox.ReasonOOM, "")
			b.exit(sandbox.ReasonOOM)
		}
	case "lease":
		s.lease(b, d)
	case "cancel":
		s.cancel(d)
	case "wait":
		s.settle(d.Time)
	case "jump":
		s.jumped.Add(int64(d.Time))
	case "control":
		s.stop()
		s.start()
		s.ref.restart()
	case "node":
		s.toNode.stop()
		s.toNode.start()
	case "gateway":
		s.toGW.stop()
		s.toGW.start()
	}
}

// breakStore makes the next two commits fail, when d says so.
func (s *stage) breakStore(d deed) {
	if d.Broken {
		s.store.failures.Store(2)
	}
}

func (s *stage) call(b *refBox, d deed) {
	rc := refCall{kind: d.What, body: d.Body & 1, busy: d.Busy, ifState: d.State, broken: d.Broken}
	call := control.Call{Principal: auth.Principal{KeyID: "key_test", Role: auth.RoleAdmin}, IfBusyFail: d.Busy, IfState: d.State}
	if d.Key > 0 {
		call.Idempotency = &control.Idempotency{Key: fmt.Sprint(d.Key), Scope: d.What}
		if d.What != "create" {
			call.Idempotency.Scope += string(b.id)
		}
		call.Idempotency.Fingerprint[0] = byte(rc.body)
		rc.key = call.Idempotency.Scope + " " + call.Idempotency.Key
	}
	if d.Broken {
		s.store.failures.Store(1)
	}
	var acc control.Accepted
	var err error
	var op *refOp
	var code sandbox.Code
	if d.What == "create" {
		spec := sandbox.Spec{Template: "mini", Driver: "fake"}
		if d.TTL > 0 {
			spec.Lease = &sandbox.Lease{TTL: d.TTL, OnExpiry: sandbox.ExpirePause}
			rc.lease = &refLease{ttl: d.TTL, left: d.TTL, expiry: sandbox.ExpirePause}
		}
		acc, err = s.c.CreateSandbox(context.Background(), call, spec)
		op, code = s.ref.create(rc)
	} else {
		acc, err = s.verb(d.What)(context.Background(), call, string(b.id))
		op, code = s.ref.call(b, rc)
	}
	s.store.failures.Store(0)
	switch got := sandbox.CodeOf(err); {
	case got != code:
		s.differ("%s answers %q (%v), want %q", d.What, got, err, code)
	case code == "" && op.id == "":
		op.id, op.box.id = acc.Operation.ID, acc.Sandbox.ID
		if acc.Operation.State.Ended() != op.noChange {
			s.differ("%s is answered with an operation that is %s", d.What, acc.Operation.State)
		}
	case code == "" && op.id != acc.Operation.ID:
		s.differ("%s answers with another operation: %s %s, want the %s %s", d.What, acc.Operation.Kind, acc.Operation.ID, op.kind, op.id)
	}
}

func (s *stage) verb(kind string) func(context.Context, control.Call, string) (control.Accepted, error) {
	return map[string]func(context.Context, control.Call, string) (control.Accepted, error){"pause": s.c.PauseSandbox, "resume": s.c.ResumeSandbox,
		"recover": s.c.RecoverSandbox, "delete": s.c.DeleteSandbox}[kind]
}

// finish lets the operation under way go on. How an expiry that fails is tried again is no matter of the reference.
func (s *stage) finish(b *refBox, d deed) {
	if len(b.queue) == 0 || d.What == "fail" && b.queue[0].leased {
		return
	}
	s.mu.Lock()
	ch := s.waiting[b.id]
	s.mu.Unlock()
	if ch == nil {
		s.differ("the %s of %s does not wait for node", b.queue[0].kind, b.id)
		return
	}
	s.breakStore(d)
	if d.What == "fail" {
		ch <- sandbox.Errorf(sandbox.CodeVMMFailed, "the VMM does not obey")
	} else {
		ch <- nil
	}
	b.finish(d.What == "finish")
}

func (s *stage) lease(b *refBox, d deed) {
	extend := d.Body >= 2
	_, err := s.c.PatchSandbox(context.Background(), string(b.id), control.SandboxPatch{Lease: &control.LeasePatch{Remove: d.TTL == 0, TTL: d.TTL, Extend: extend, OnExpiry: d.Expiry}})
	switch {
	case b.state == sandbox.StateDeleted && sandbox.CodeOf(err) == sandbox.CodeNotFound:
	case b.state == sandbox.StateDeleted || err != nil:
		s.differ("patch of a lease: %v", err)
	default:
		b.patch(d.TTL, extend, d.Expiry)
	}
}

func (s *stage) cancel(d deed) {
	op := s.ref.ops[d.Op%len(s.ref.ops)]
	if op.leased && op.state == operation.Running {
		return
	}
	_, err := s.c.CancelOperation(context.Background(), op.id)
	if got, want := sandbox.CodeOf(err), op.cancel(); got != want {
		s.differ("cancel of %s %s: %q (%v), want %q", op.kind, op.id, got, err, want)
	}
}

// compare looks at all that can be read.
func (s *stage) compare() {
	ctx := context.Background()
	if err := s.c.Ready(ctx); err != nil {
		s.differ("not ready: %v", err)
	}
	for _, b := range s.ref.boxes {
		s.compareBox(ctx, b)
	}
	for _, want := range s.ref.ops {
		op, err := s.c.GetOperation(ctx, want.id, 0)
		var code sandbox.Code
		if op.Error != nil {
			code = op.Error.Code
		}
		if err != nil || op.State != want.state || op.NoChange != want.noChange || code != want.code || op.Kind != want.kind {
			s.differ("operation %s is %s %s, no change %t, %v, %v; want %s %s, %t, %s", want.id, op.Kind, op.State, op.NoChange, op.Error, err, want.kind, want.state, want.noChange, want.code)
		}
	}
	page, err := s.c.ListOperations(ctx, control.OperationFilter{PageRequest: control.PageRequest{Count: true}})
	if err != nil || *page.Total != len(s.ref.ops) {
		s.differ("%d operations, %v; want %d", *page.Total, err, len(s.ref.ops))
	}
}

func (s *stage) compareBox(ctx context.Context, b *refBox) {
	box, err := s.c.GetSandbox(ctx, string(b.id))
	state, _ := s.node.state(string(b.id))
	if b.state == sandbox.StateDeleted {
		if sandbox.CodeOf(err) != sandbox.CodeNotFound || state != 0 {
			s.differ("sandbox %s is %s, %v, machine %s; want it deleted", b.id, box.State, err, state)
		}
		return
	}
	if len(b.queue) > 0 && b.queue[0].id == "" { // begun by a lease
		b.queue[0].id = box.OperationID
	}
	var busy sandbox.OperationID
	if len(b.queue) > 0 {
		busy = b.queue[0].id
	}
	if err != nil || box.State != b.state || box.DesiredState != b.desired || box.Reason != b.reason || box.OperationID != busy {
		s.differ("sandbox %s is %s, to be %s, reason %q, operation %q, %v; want %s, %s, %q, %q", b.id, box.State, box.DesiredState, box.Reason, box.OperationID, err,
			b.state, b.desired, b.reason, busy)
	}
	wantMachine := map[sandbox.State]string{sandbox.StateRunning: "RUNNING", sandbox.StatePausing: "RUNNING", sandbox.StatePaused: "PAUSED"}[b.state]
	if !strings.HasSuffix(state.String(), wantMachine) {
		s.differ("sandbox %s is %s, its machine %s", b.id, b.state, state)
	}
	switch got, want := box.Lease, b.lease; {
	case (got == nil) != (want == nil):
		s.differ("sandbox %s has lease %+v, want %+v", b.id, got, want)
	case got == nil:
	case got.TTL != want.ttl || got.OnExpiry != want.expiry || (got.Left(s.now())-want.left).Abs() > 60*time.Second:
		s.differ("sandbox %s has lease %+v, left %s; want %+v", b.id, got, got.Left(s.now()), want)
	}
}
