package control_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

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

// patience bounds every wait of a test; reaching it is a failure.
const patience = 20 * time.Second

// world is a control with a store, a fake node and a fake gateway, each of which can be restarted.
type world struct {
	t      testing.TB
	dir    string
	store  store.Store
	signer *auth.Signer
	limits control.Limits
	clock  *twoClocks // nil: the process's own
	node   *fakeNode
	guests *fakeGuests

	gw          *fakeGateway
	stopNode    func()
	stopGateway func()
	c           *control.Control
	stopControl func()
}

// newWorld starts everything and waits until control is ready.
func newWorld(t testing.TB) *world {
	t.Helper()
	return newWorldOn(t, memory.New())
}

func newWorldOn(t testing.TB, s store.Store) *world {
	t.Helper()
	return newWorldAt(t, s, nil)
}

func newWorldAt(t testing.TB, s store.Store, clock *twoClocks) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "ctl") // short: a socket's path has at most 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	w := &world{t: t, dir: dir, store: s, signer: auth.NewSigner(), node: newFakeNode(), guests: newFakeGuests(), clock: clock}
	t.Cleanup(func() {
		w.stopControl()
		w.stopNode()
		w.stopGateway()
		if err := s.Close(); err != nil {
			t.Errorf("close store: %v", err)
		}
	})
	w.startNode()
	w.startGateway()
	w.startControl()
	w.eventually("control is ready", func() bool { return w.c.Ready(t.Context()) == nil })
	return w
}

// serve serves h on a unix socket and returns how to kill it, streams and all.
func (w *world) serve(name string, h http.Handler) (stop func()) {
	w.t.Helper()
	l, err := net.Listen("unix", filepath.Join(w.dir, name))
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	srv := &http.Server{Handler: h, Protocols: rpc.Protocols(), ReadHeaderTimeout: patience, BaseContext: func(net.Listener) context.Context { return ctx }}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			w.t.Errorf("serve %s: %v", name, err)
		}
	}()
	return sync.OnceFunc(func() {
		cancel()
		srv.Close()
		<-done
	})
}

func (w *world) startNode() {
	mux := http.NewServeMux()
	mux.Handle(nodev1connect.NewNodeServiceHandler(w.node, connect.WithInterceptors(rpc.Errors())))
	w.stopNode = w.serve("n", mux)
}

// startGateway starts a new life of the gateway: it knows nothing until it is configured.
func (w *world) startGateway() {
	w.gw = newFakeGateway(w.guests)
	mux := http.NewServeMux()
	mux.Handle(gatewayv1connect.NewGatewayServiceHandler(w.gw, connect.WithInterceptors(rpc.Errors())))
	mux.HandleFunc("/raw/", w.gw.raw)
	w.stopGateway = w.serve("g", mux)
}

func (w *world) startControl() {
	w.t.Helper()
	nodeHTTP := rpc.HTTPClient(rpc.DialUnix(filepath.Join(w.dir, "n")))
	gatewayHTTP := rpc.HTTPClient(rpc.DialUnix(filepath.Join(w.dir, "g")))
	opt := connect.WithInterceptors(rpc.Errors())
	var now func() time.Time
	var elapsed func() time.Duration
	if w.clock != nil {
		now, elapsed = w.clock.now, w.clock.elapsed
	}
	c, err := control.New(context.Background(), control.Deps{Store: w.store, Now: now, Elapsed: elapsed,
		Node:    nodev1connect.NewNodeServiceClient(nodeHTTP, rpc.BaseURL, opt),
		Gateway: gatewayv1connect.NewGatewayServiceClient(gatewayHTTP, rpc.BaseURL, opt), GatewayHTTP: gatewayHTTP,
		Signer: w.signer, Logger: slog.New(slog.DiscardHandler), DataPlaneURL: "http://127.0.0.1:7071", Images: fakeImages{}, ImportDir: w.dir, Limits: w.limits})
	if err != nil {
		w.t.Fatalf("New: %v", err)
	}
	done := make(chan error, 1)
	go func() { done <- c.Run(context.Background()) }()
	w.c = c
	w.stopControl = sync.OnceFunc(func() {
		if err := c.Close(); err != nil {
			w.t.Errorf("Close: %v", err)
		}
		if err := <-done; err != nil {
			w.t.Errorf("Run: %v", err)
		}
		nodeHTTP.CloseIdleConnections()
		gatewayHTTP.CloseIdleConnections()
	})
}

// crash ends control in the middle of whatever it does; the record stays.
func (w *world) crash() { w.stopControl() }

// eventually waits for a condition that no event announces.
func (w *world) eventually(what string, ok func() bool) {
	w.t.Helper()
	if !within(patience, ok) {
		w.t.Fatalf("not within %s: %s", patience, what)
	}
}

func within(limit time.Duration, ok func() bool) bool {
	deadline := time.After(limit)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			return false
		}
	}
	return true
}

// started is a command session whose process runs until somebody ends it.
func (w *world) started(box sandbox.ID) sandbox.Command {
	w.t.Helper()
	made, err := w.c.CreateCommand(w.t.Context(), w.call(), string(box), sandbox.CommandSpec{Argv: []string{"sleep"}}, true)
	if err != nil {
		w.t.Fatal(err)
	}
	return made.Command
}

func (w *world) call() control.Call {
	return control.Call{Principal: auth.Principal{KeyID: "key_test", Role: auth.RoleAdmin}}
}

// keyed is a call with an Idempotency-Key; body stands for the request's body.
func (w *world) keyed(key, scope, body string) control.Call {
	call := w.call()
	call.Idempotency = &control.Idempotency{Key: key, Scope: scope}
	copy(call.Idempotency.Fingerprint[:], body)
	return call
}

// ended waits for an operation's end.
func (w *world) ended(id sandbox.OperationID) operation.Operation {
	w.t.Helper()
	op, err := w.c.GetOperation(w.t.Context(), id, patience)
	if err != nil {
		w.t.Fatalf("GetOperation: %v", err)
	}
	if !op.State.Ended() {
		w.t.Fatalf("operation %s is %s after %s", id, op.State, patience)
	}
	return op
}

// accept makes a create.
func (w *world) accept(spec sandbox.Spec) control.Accepted {
	w.t.Helper()
	if spec.Template == "" {
		spec.Template = "mini"
	}
	acc, err := w.c.CreateSandbox(w.t.Context(), w.call(), spec)
	if err != nil {
		w.t.Fatalf("CreateSandbox: %v", err)
	}
	return acc
}

// running creates a sandbox and waits until it runs.
func (w *world) running(spec sandbox.Spec) sandbox.Sandbox {
	w.t.Helper()
	acc := w.accept(spec)
	if op := w.ended(acc.Operation.ID); op.State != operation.Succeeded {
		w.t.Fatalf("create: %s %v", op.State, op.Error)
	}
	return w.box(acc.Sandbox.ID)
}

func (w *world) box(id sandbox.ID) sandbox.Sandbox {
	w.t.Helper()
	box, err := w.c.GetSandbox(w.t.Context(), string(id))
	if err != nil {
		w.t.Fatalf("GetSandbox: %v", err)
	}
	return box
}

// deleted deletes a sandbox and waits until it is gone.
func (w *world) deleted(id sandbox.ID) {
	w.t.Helper()
	acc, err := w.c.DeleteSandbox(w.t.Context(), w.call(), string(id))
	if err != nil {
		w.t.Fatalf("DeleteSandbox: %v", err)
	}
	if op := w.ended(acc.Operation.ID); op.State != operation.Succeeded {
		w.t.Fatalf("delete: %s %v", op.State, op.Error)
	}
}

// nothingLeft checks that neither node nor gateway has anything.
func (w *world) nothingLeft() {
	w.t.Helper()
	if ids := w.node.ids(); len(ids) != 0 {
		w.t.Errorf("machines left: %v", ids)
	}
	if ids := w.gw.routed(); len(ids) != 0 {
		w.t.Errorf("routes left: %v", ids)
	}
}

func wantCode(t testing.TB, err error, want sandbox.Code) {
	t.Helper()
	if got := sandbox.CodeOf(err); got != want {
		t.Errorf("code %q (%v), want %q", got, err, want)
	}
}

// gate blocks a hooked call until it is opened, and tells when the call has come.
type gate struct {
	reached chan struct{}
	open    chan struct{}
	once    sync.Once
}

func newGate() *gate { return &gate{reached: make(chan struct{}), open: make(chan struct{})} }

// at returns a hook that stops the calls of that name.
func (g *gate) at(name string) func(context.Context, string, string) error {
	return func(ctx context.Context, call, _ string) error {
		if call != name {
			return nil
		}
		g.once.Do(func() { close(g.reached) })
		select {
		case <-g.open:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// failing returns a hook that fails the calls of that name.
func failing(name string, err error) func(context.Context, string, string) error {
	return func(_ context.Context, call, _ string) error {
		if call == name {
			return err
		}
		return nil
	}
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }
