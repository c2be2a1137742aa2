package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/coder/websocket"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	gatewayv1 "github.com/space-sandbox/space/api/proto/gateway/v1"
	"github.com/space-sandbox/space/api/proto/gateway/v1/gatewayv1connect"
	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/agent"
	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/ingress"
	"github.com/space-sandbox/space/internal/rpc"
	"github.com/space-sandbox/space/internal/sandbox"
)

// quietMachine is the agent's machine: it notes what Init gave.
type quietMachine struct {
	hostname atomic.Value
	entropy  atomic.Int64
	ahead    atomic.Int64 // how far the clock is ahead, in nanoseconds
	sets     atomic.Int64 // of the clock
	adjusts  atomic.Int64
}

func (m *quietMachine) SetHostname(name string) error { m.hostname.Store(name); return nil }
func (m *quietMachine) Now() time.Time                { return time.Now().Add(time.Duration(m.ahead.Load())) }
func (m *quietMachine) SetClock(now time.Time) error {
	m.sets.Add(1)
	m.ahead.Store(int64(time.Until(now)))
	return nil
}
func (m *quietMachine) AdjustClock(by time.Duration) error {
	m.adjusts.Add(1)
	m.ahead.Add(int64(by))
	return nil
}
func (m *quietMachine) AddEntropy(seed []byte) error { m.entropy.Store(int64(len(seed))); return nil }
func (m *quietMachine) Shutdown()                    {}
func (m *quietMachine) UserGroup() int               { return -1 }

// world is the outside of a gateway: agents that outlive it, control's key and the calls control makes.
type world struct {
	t      testing.TB
	signer *auth.Signer
	dir    string
	change func(*Deps) // nil: as they are

	mu       sync.Mutex
	boxes    map[sandbox.ID]*box
	g        *Gateway
	control  *http.Client
	data     *httptest.Server
	shutdown func()
}

// box is one sandbox: an agent behind a socket.
type box struct {
	route   *gatewayv1.Route
	machine *quietMachine
	socket  string
	tries   atomic.Int64 // of dials
	dials   atomic.Int64 // that came through
	open    atomic.Int64 // connections
	read    atomic.Int64 // bytes the gateway took

	mu    sync.Mutex
	conns map[*countedConn]struct{}
	log   consoleLog
}

// consoleLog is what an agent has logged.
type consoleLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *consoleLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *consoleLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func newWorld(t testing.TB) *world { return newWorldWith(t, nil) }

// newWorldWith makes a world whose gateways get other dependencies.
func newWorldWith(t testing.TB, change func(*Deps)) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "gw")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	w := &world{t: t, signer: auth.NewSigner(), dir: dir, change: change, boxes: map[sandbox.ID]*box{}}
	w.start()
	t.Cleanup(func() { w.stop() })
	return w
}

// start runs a gateway on its sockets.
func (w *world) start() {
	w.t.Helper()
	deps := Deps{DialAgent: w.dial, Logger: slog.New(slog.DiscardHandler), Limits: ingress.Limits{GuestPatience: 2 * time.Second}}
	if w.change != nil {
		w.change(&deps)
	}
	w.g = New(deps)
	path := filepath.Join(w.dir, "g")
	l, err := rpc.Listen("unix", path, -1)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- rpc.Serve(ctx, l, w.g.ControlHandler()) }()
	w.control = rpc.HTTPClient(rpc.DialUnix(path))
	w.data = httptest.NewServer(w.g.DataHandler())
	w.shutdown = sync.OnceFunc(func() {
		w.g.Close()
		w.control.CloseIdleConnections()
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("Serve: %v", err)
		}
		w.data.Close()
	})
}

func (w *world) stop() { w.shutdown() }

// restart is a gateway that ends and comes back.
func (w *world) restart() {
	w.t.Helper()
	w.stop()
	w.start()
}

func (w *world) dial(ctx context.Context, id sandbox.ID) (net.Conn, error) {
	w.mu.Lock()
	b := w.boxes[id]
	w.mu.Unlock()
	if b == nil {
		return nil, sandbox.Errorf(sandbox.CodeNotFound, "no such machine")
	}
	b.tries.Add(1)
	conn, err := rpc.DialUnix(b.socket)(ctx)
	if err != nil {
		return nil, err
	}
	b.dials.Add(1)
	b.open.Add(1)
	c := &countedConn{Conn: conn, box: b}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conns[c] = struct{}{}
	return c, nil
}

// cut breaks all connections to the agent, as a fault of the network would.
func (b *box) cut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.conns {
		c.Conn.Close()
	}
}

type countedConn struct {
	net.Conn
	box  *box
	once sync.Once
}

func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.box.read.Add(int64(n))
	return n, err
}

func (c *countedConn) Close() error {
	c.once.Do(func() {
		c.box.open.Add(-1)
		c.box.mu.Lock()
		defer c.box.mu.Unlock()
		delete(c.box.conns, c)
	})
	return c.Conn.Close()
}

// newBox makes a sandbox whose agent does not listen yet.
func (w *world) newBox() *box {
	id := sandbox.NewID()
	b := &box{conns: map[*countedConn]struct{}{}, machine: &quietMachine{}, socket: filepath.Join(w.dir, string(id)), route: &gatewayv1.Route{SandboxId: string(id),
		Generation: 1, AgentToken: strings.Repeat("5a", 32)}}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.boxes[id] = b
	return b
}

// boot makes a real agent of this process listen.
func (w *world) boot(b *box) *box {
	w.t.Helper()
	s, err := agent.New(agent.Config{Token: b.route.AgentToken, Version: "1.2.3", Machine: b.machine,
		Stages: []agent.Stage{{Name: "boot", Took: time.Second}}, Logger: slog.New(slog.NewTextHandler(&b.log, nil))})
	if err != nil {
		w.t.Fatal(err)
	}
	w.serve(b, s.Handler())
	w.t.Cleanup(s.Close)
	return b
}

// serve makes h the agent of a sandbox.
func (w *world) serve(b *box, h http.Handler) {
	w.t.Helper()
	l, err := net.Listen("unix", b.socket)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- rpc.Serve(ctx, l, h) }()
	w.t.Cleanup(func() {
		w.stop() // the gateway goes first: nobody waits for its streams
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("agent: %v", err)
		}
	})
}

func (w *world) rpc() gatewayv1connect.GatewayServiceClient {
	return gatewayv1connect.NewGatewayServiceClient(w.control, rpc.BaseURL, connect.WithInterceptors(rpc.Errors()))
}

func (w *world) configure(boxes ...*box) {
	w.t.Helper()
	req := &gatewayv1.ConfigureRequest{VerifyKey: w.signer.PublicKey()}
	for _, b := range boxes {
		req.Routes = append(req.Routes, b.route)
	}
	if _, err := w.rpc().Configure(w.t.Context(), connect.NewRequest(req)); err != nil {
		w.t.Fatalf("configure: %v", err)
	}
}

// command is a command session of a box.
type command struct {
	w     *world
	box   *box
	id    sandbox.CommandID
	proc  sandbox.ProcessID
	token string
}

func (w *world) shell(b *box, script string, stdin bool) *command {
	w.t.Helper()
	c := &command{w: w, box: b, id: sandbox.NewCommandID(), proc: sandbox.NewProcessID()}
	_, err := w.rpc().CreateProcess(w.t.Context(), connect.NewRequest(&gatewayv1.CreateProcessRequest{SandboxId: b.route.SandboxId,
		CommandId: string(c.id), ProcessId: string(c.proc), Spec: &agentv1.ProcessSpec{Argv: []string{"/bin/sh", "-c", script}, Stdin: stdin}}))
	if err != nil {
		w.t.Fatalf("create process: %v", err)
	}
	// What control would name in the next Configure.
	b.route.Sessions = append(b.route.Sessions, &gatewayv1.Session{CommandId: string(c.id), ProcessId: string(c.proc)})
	c.sign()
	return c
}

// sign makes the token that opens the command.
func (c *command) sign() {
	c.w.t.Helper()
	var err error
	c.token, _, err = c.w.signer.SignAttach(auth.AttachClaims{CommandID: c.id, SandboxID: sandbox.ID(c.box.route.SandboxId), ProcessID: c.proc,
		ExpiresAt: time.Now().Add(time.Hour)})
	if err != nil {
		c.w.t.Fatal(err)
	}
}

// client is a WebSocket client of a command.
type client struct {
	t       testing.TB
	conn    *websocket.Conn
	control []apiv1.Control
	out     [3]bytes.Buffer
	closed  websocket.CloseError
}

func (c *command) attach(query string) *client {
	c.w.t.Helper()
	conn, _, err := websocket.Dial(c.w.t.Context(), c.w.data.URL+"/v1/attach/"+string(c.id)+query, &websocket.DialOptions{
		Subprotocols: []string{apiv1.AttachProtocol}, HTTPHeader: http.Header{"Authorization": {"Bearer " + c.token}}})
	if err != nil {
		c.w.t.Fatalf("attach: %v", err)
	}
	c.w.t.Cleanup(func() { conn.CloseNow() })
	return &client{t: c.w.t, conn: conn}
}

// step reads a frame; false: the connection has been closed.
func (c *client) step() bool {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 20*time.Second)
	defer cancel()
	_, data, err := c.conn.Read(ctx)
	if err != nil {
		if ctx.Err() != nil {
			c.t.Fatalf("no frame in 20 s; so far %+v, %q, %q", c.control, &c.out[1], &c.out[2])
		}
		if !errors.As(err, &c.closed) {
			c.t.Fatalf("the connection broke: %v", err)
		}
		return false
	}
	if data[0] != apiv1.ChannelControl {
		c.out[data[0]].Write(data[1:])
		return true
	}
	var frame apiv1.Control
	if err := json.Unmarshal(data[1:], &frame); err != nil {
		c.t.Fatalf("control frame %q: %v", data[1:], err)
	}
	c.control = append(c.control, frame)
	return true
}

func (c *client) untilStdout(want string) {
	c.t.Helper()
	for c.out[1].String() != want {
		if !c.step() {
			c.t.Fatalf("closed with %v; stdout %q", c.closed, &c.out[1])
		}
	}
}

func (c *client) rest() websocket.CloseError {
	c.t.Helper()
	for c.step() {
	}
	return c.closed
}

func (c *client) send(channel byte, data string) {
	c.t.Helper()
	if err := c.conn.Write(c.t.Context(), websocket.MessageBinary, append([]byte{channel}, data...)); err != nil {
		c.t.Fatal(err)
	}
}

// exit is the last control frame.
func (c *client) exit() apiv1.Control {
	if len(c.control) == 0 {
		return apiv1.Control{}
	}
	return c.control[len(c.control)-1]
}

// get asks the data plane.
func (w *world) get(path string) *http.Response {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, w.data.URL+path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	res, err := w.data.Client().Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	return res
}

// watch opens control's watch.
func (w *world) watch() *connect.ServerStreamForClient[gatewayv1.WatchResponse] {
	w.t.Helper()
	s, err := w.rpc().Watch(w.t.Context(), connect.NewRequest(&gatewayv1.WatchRequest{}))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { s.Close() })
	return s
}

// until receives until ok accepts an event.
func until(t *testing.T, s *connect.ServerStreamForClient[gatewayv1.WatchResponse], what string, ok func(*gatewayv1.WatchResponse) bool) *gatewayv1.WatchResponse {
	t.Helper()
	for s.Receive() {
		if ok(s.Msg()) {
			return s.Msg()
		}
	}
	t.Fatalf("the watch ended before %s: %v", what, s.Err())
	return nil
}

func wantCode(t *testing.T, err error, code sandbox.Code) {
	t.Helper()
	if got := sandbox.CodeOf(err); got != code {
		t.Errorf("code %q (%v), want %q", got, err, code)
	}
}

// raw makes a request to a raw route.
func (w *world) raw(method, path string, body io.Reader) (int, []byte, *http.Response) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, rpc.BaseURL+path, body)
	if err != nil {
		w.t.Fatal(err)
	}
	res, err := w.control.Do(req)
	if err != nil {
		w.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Fatalf("%s %s: %v", method, path, err)
	}
	return res.StatusCode, data, res
}
