// Package control decides: it keeps the durable record, runs every transition of every sandbox in one place, and tells
// node and gateway what to do. It touches neither a machine nor a byte of a guest itself.
//
// Each sandbox has a lane (see lanes.go) in which its operations and what node reports about it are handled one at a
// time and in order: the supervisor. Requests are accepted by a commit and answered at once.
package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/space-sandbox/space/api/proto/gateway/v1/gatewayv1connect"
	nodev1 "github.com/space-sandbox/space/api/proto/node/v1"
	"github.com/space-sandbox/space/api/proto/node/v1/nodev1connect"
	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
	"github.com/space-sandbox/space/internal/transcript"
)

// Deps is what a Control is made of.
type Deps struct {
	Store   store.Store
	Node    nodev1connect.NodeServiceClient
	Gateway gatewayv1connect.GatewayServiceClient
	// GatewayHTTP carries raw bodies (files, stdin) to the gateway; its transport dials gateway.sock.
	GatewayHTTP *http.Client
	// NodeHTTP asks node for its metrics; its transport dials node.sock. Nil: they are left out.
	NodeHTTP *http.Client
	Signer   *auth.Signer
	Logger   *slog.Logger
	// DataPlaneURL is where clients find the data plane, http:// or https://.
	DataPlaneURL string
	// AdminHashFile holds the SHA-256 of the first key in hex; a missing file is fine. "" for none.
	AdminHashFile string
	// Transcripts keeps what recorded sessions said; nil: sessions cannot be recorded.
	Transcripts *transcript.Store
	// Images fetches images; ImportDir is an existing private directory for archives on their way. Without them nothing is
	// imported.
	Images    Images
	ImportDir string
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Elapsed is a clock that never jumps, since any moment; leases are measured with it. Nil: the process's own, or
	// that of Now when there is one.
	Elapsed func() time.Duration
	// Limits bounds times and numbers; zero fields get the defaults.
	Limits Limits
}

// Limits bounds what control waits for and runs at once.
type Limits struct {
	CreateDeadline    time.Duration // a whole create from its turn on, default 180 s (emulated machines boot slowly)
	ReadyDeadline     time.Duration // waiting for the guest's agent, default 120 s
	CallTimeout       time.Duration // one short call of the gateway or node, default 15 s
	AckTimeout        time.Duration // telling a guest that a result is recorded, default 5 s
	DeleteTimeout     time.Duration // one attempt of removing a machine, default 60 s
	PauseDeadline     time.Duration // stopping a machine's vCPUs, or letting them go on, default 30 s
	ResumeDeadline    time.Duration // waiting for the guest of a resumed machine, default 30 s
	ImportDeadline    time.Duration // a whole import of an image, default 30 min
	StartPatience     time.Duration // how long the start of a command waits for a restarting gateway, default 20 s
	AttachTTL         time.Duration // attach tokens, default 1 h
	AttachWithin      time.Duration // how long a session waits for its first attach before it expires, default 10 min
	ConcurrentCreates int           // machines being created or recovered at once; more wait in state queued; default 32
	QueuedPerKey      int           // creates and recoveries of one key's sandboxes that wait; default 1000
	Queued            int           // of all keys; default 4000
	Sandboxes         int           // that are not deleted; 0: as many as node has uids for
}

func (l Limits) withDefaults() Limits {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&l.CreateDeadline, 180*time.Second)
	set(&l.ReadyDeadline, 120*time.Second)
	set(&l.CallTimeout, 15*time.Second)
	set(&l.AckTimeout, 5*time.Second)
	set(&l.DeleteTimeout, 60*time.Second)
	set(&l.PauseDeadline, 30*time.Second)
	set(&l.ResumeDeadline, 30*time.Second)
	set(&l.ImportDeadline, 30*time.Minute)
	set(&l.StartPatience, 20*time.Second)
	set(&l.AttachTTL, time.Hour)
	set(&l.AttachWithin, 10*time.Minute)
	number := func(n *int, v int) {
		if *n == 0 {
			*n = v
		}
	}
	number(&l.ConcurrentCreates, 32)
	number(&l.QueuedPerKey, 1000)
	number(&l.Queued, 4000)
	return l
}

// Control implements what API v1 needs (httpapi.Control). Make it with New, let Run keep it in touch with node and
// gateway, end it with Close. All methods are safe for concurrent use.
type Control struct {
	Deps
	engine    *operation.Engine
	base      context.Context // ends with Close; the life of everything done in the background
	stop      context.CancelFunc
	outbox    *outbox // is also Store
	boxes     *lanes  // one per sandbox: its supervisor
	events    *lanes  // one per sandbox: process states from the gateway
	waiting   *notifier
	turns     *turns  // of creates and recoveries
	budget    *budget // what they have reserved
	draining  atomic.Bool
	drainLock sync.Mutex          // held while draining changes
	imports   *semaphore.Weighted // imports queued or under way
	node      *link
	gateway   *link
	routes    *routes
	holds     *holds
	stdin     *stdinRoom // of execs
	recorders *recorders
	metrics   *metrics
	verifier  *auth.Verifier                         // of sandbox tokens
	traces    sync.Map                               // sandbox.OperationID to the telemetry.Trace of its request
	info      atomic.Pointer[nodev1.GetNodeResponse] // node's last description of itself
	workers   sync.WaitGroup                         // background work outside the lanes
}

// New opens control on its record: it imports the first key and takes up what an earlier process left unfinished.
func New(ctx context.Context, deps Deps) (*Control, error) {
	deps.setClocks()
	deps.Limits = deps.Limits.withDefaults()
	box := &outbox{Store: deps.Store, now: deps.Now, dataPlane: deps.DataPlaneURL,
		leases: newLeaseClock(deps.Now, deps.Elapsed), news: newPulse(), sweep: newAlarm()}
	deps.Store = box
	base, stop := context.WithCancel(context.WithoutCancel(ctx))
	c := &Control{Deps: deps, base: base, stop: stop, boxes: newLanes(), events: newLanes(), waiting: newNotifier(),
		turns: newTurns(deps.Limits.ConcurrentCreates, deps.Limits.QueuedPerKey, deps.Limits.Queued), budget: newBudget(nil),
		imports: semaphore.NewWeighted(maxImports), node: newLink("node"), gateway: newLink("gateway"),
		routes: newRoutes(), holds: newHolds(), stdin: newStdinRoom(), recorders: newRecorders(), verifier: auth.NewVerifier(deps.Signer.PublicKey()),
		outbox: box}
	c.metrics = newMetrics(c)
	c.engine = operation.New(operation.Config{Store: operationStore{deps.Store}, Now: deps.Now, Logger: deps.Logger})
	if err := c.open(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Control) open(ctx context.Context) error {
	if err := c.importAdminKey(ctx); err != nil {
		return err
	}
	if err := c.sweepStages(); err != nil {
		return fmt.Errorf("sweep imports: %w", err)
	}
	live, err := c.Store.LiveSandboxes(ctx)
	if err != nil {
		return fmt.Errorf("read sandboxes: %w", err)
	}
	c.budget = newBudget(live)
	if err := c.openDrain(ctx); err != nil {
		return fmt.Errorf("read whether the node is being drained: %w", err)
	}
	for _, box := range live {
		switch box.State {
		case sandbox.StateRunning, sandbox.StatePausing, sandbox.StatePaused, sandbox.StateResuming:
			c.routes.set(box, heldOf(box))
		}
	}
	if err := c.openLeases(ctx, c.outbox); err != nil {
		return fmt.Errorf("open leases: %w", err)
	}
	return c.engine.Recover(ctx, c.adopt)
}

// setClocks makes the clocks that are missing.
func (d *Deps) setClocks() {
	if d.Elapsed == nil {
		began := time.Now()
		d.Elapsed = func() time.Duration { return time.Since(began) }
		if now := d.Now; now != nil {
			began := now()
			d.Elapsed = func() time.Duration { return now().Sub(began) }
		}
	}
	if d.Now == nil {
		d.Now = time.Now
	}
}

// Run keeps control in touch with node and gateway and clears out old records until ctx ends or Close is called.
func (c *Control) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.base, cancel)()
	var g errgroup.Group
	g.Go(func() error { c.follow(ctx, c.node, c.followNode); return nil })
	g.Go(func() error { c.follow(ctx, c.gateway, c.followGateway); return nil })
	g.Go(func() error { c.purge(ctx); return nil })
	g.Go(func() error { c.purgeOldEvents(ctx); return nil })
	g.Go(func() error { c.expire(ctx); return nil })
	g.Go(func() error { c.sweepLeases(ctx); return nil })
	return g.Wait()
}

// Close ends everything that runs in the background. Operations under way stay unfinished in the record and are taken
// up by the next New. The store belongs to the caller.
func (c *Control) Close() error {
	c.stop()
	c.boxes.close()
	c.events.close()
	c.workers.Wait()
	return nil
}

// Ready is nil when control can take work: its store, node and gateway answer, and the record agrees with node.
func (c *Control) Ready(ctx context.Context) error {
	if _, err := c.Store.Usage(ctx, ""); err != nil {
		return storeError(err)
	}
	if err := c.node.check(); err != nil {
		return err
	}
	return c.gateway.check()
}

// operationStore is the store as the engine sees it.
type operationStore struct{ store.Store }

// SaveOperation implements operation.Store.
func (s operationStore) SaveOperation(ctx context.Context, op operation.Operation) error {
	err := s.Update(ctx, func(tx store.Tx) error { return tx.UpdateOperation(op) })
	if errors.Is(err, store.ErrConflict) {
		return nil // it has ended
	}
	return err
}

// Ages after which records are purged.
const (
	idempotencyAge = 24 * time.Hour
	recordAge      = 7 * 24 * time.Hour
	purgeInterval  = time.Hour
)

func (c *Control) purge(ctx context.Context) {
	ticker := time.NewTicker(purgeInterval)
	defer ticker.Stop()
	for {
		now := c.Now()
		err := c.Store.Update(ctx, func(tx store.Tx) error {
			return tx.Purge(now.Add(-idempotencyAge), now.Add(-recordAge))
		})
		if err != nil && ctx.Err() == nil {
			c.Logger.Error("old records could not be purged", "error", err)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}
