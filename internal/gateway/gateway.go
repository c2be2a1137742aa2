// Package gateway is the gateway process as a library: the only part that speaks with guests. Control asks it for agent
// calls over gateway.sock (ControlHandler); clients reach command sessions through its data plane (DataHandler, package
// ingress). It keeps no state of its own over a restart: control configures it anew.
package gateway

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/space-sandbox/space/api/proto/gateway/v1/gatewayv1connect"
	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/ingress"
	"github.com/space-sandbox/space/internal/rpc"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/telemetry"
)

// maxMessageBytes bounds one message of control: a Configure names every command session of every sandbox.
const maxMessageBytes = 64 << 20

// Deps is what a Gateway is made of. DialAgent and Logger are required.
type Deps struct {
	// DialAgent connects to the agent of a sandbox; ctx bounds the attempt.
	DialAgent func(ctx context.Context, id sandbox.ID) (net.Conn, error)
	Logger    *slog.Logger
	// Now is the clock for tokens and guests; nil means time.Now.
	Now func() time.Time
	// ClockEvery is how often the clock of each running guest is compared with Now; 0 means every minute.
	ClockEvery time.Duration
	// Limits bounds what clients of the data plane may take.
	Limits ingress.Limits
}

// Gateway carries everything between guests and the rest of the house. Safe for concurrent use. End it with Close.
type Gateway struct {
	deps     Deps
	instance string
	control  http.Handler
	data     *ingress.Handler
	board    *board
	metrics  *metrics

	ctx  context.Context // ends with Close
	stop context.CancelCauseFunc
	work sync.WaitGroup // the routes' watchers

	mu       sync.Mutex
	verifier *auth.Verifier // nil until configured
	routes   map[sandbox.ID]*route
	closed   bool
}

// New makes a Gateway that serves nothing until control has configured it.
func New(deps Deps) *Gateway {
	if deps.Now == nil {
		deps.Now = time.Now
	}
	if deps.ClockEvery <= 0 {
		deps.ClockEvery = time.Minute
	}
	g := &Gateway{deps: deps, instance: newInstanceID(), board: newBoard(), routes: map[sandbox.ID]*route{}}
	g.ctx, g.stop = context.WithCancelCause(context.Background())
	g.metrics = newMetrics(g)
	g.data = ingress.New(ingress.Config{Backend: backend{g}, Logger: deps.Logger, Limits: deps.Limits})
	mux := http.NewServeMux()
	mux.Handle(gatewayv1connect.NewGatewayServiceHandler(&service{g: g}, connect.WithInterceptors(telemetry.ObserveCalls("gateway", g.metrics.registry, deps.Logger), rpc.Errors()),
		connect.WithReadMaxBytes(maxMessageBytes)))
	mux.Handle("/raw/", telemetry.Traced(g.metrics.countRaw(&rawHandler{g: g})))
	mux.Handle("GET "+telemetry.MetricsPath, telemetry.Handler(g.metrics.registry))
	g.control = mux
	return g
}

func newInstanceID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}

// ControlHandler serves control: GatewayService and the raw routes. Serve it with rpc.Serve on gateway.sock, to
// control's uid only.
func (g *Gateway) ControlHandler() http.Handler { return g.control }

// DataHandler serves clients on the data-plane address, over HTTP/1.1.
func (g *Gateway) DataHandler() http.Handler { return telemetry.Traced(g.data) }

// Close ends all streams, telling clients to come back, and waits until they and all connections into guests are gone.
// Calls that come later are answered as unavailable. Idempotent.
func (g *Gateway) Close() {
	g.stop(ingress.ErrRestart)
	g.mu.Lock()
	g.closed = true
	routes := g.routes
	g.routes = map[sandbox.ID]*route{}
	g.mu.Unlock()
	for _, rt := range routes {
		g.shut(rt, ingress.ErrRestart)
	}
	g.data.Wait()
	g.work.Wait()
}
