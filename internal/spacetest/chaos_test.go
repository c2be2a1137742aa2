package spacetest_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/spacetest"
)

// chaos is what 50 clients do at once to the same five sandboxes.
type chaos struct {
	t *testing.T
	i *spacetest.Installation

	mu      sync.Mutex
	ops     []string
	deletes map[string]string // operation to sandbox
	done    atomic.Int64
}

const (
	chaosClients = 50
	chaosCalls   = 30
	chaosEnd     = 90 * time.Second
)

// TestChaos: whatever 50 clients ask of five sandboxes at once, and whatever is restarted meanwhile: no answer is an
// internal error, every operation ends, no sandbox stays on its way, every delete is done, and nothing is left.
func TestChaos(t *testing.T) {
	t.Parallel()
	c := &chaos{t: t, i: spacetest.Start(t), deletes: map[string]string{}}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var wg sync.WaitGroup
	for n := range chaosClients {
		wg.Go(func() { c.client(rand.New(rand.NewPCG(seed, uint64(n)))) })
	}
	after := func(share int64, what func()) {
		c.eventually("the clients go on", func() bool { return c.done.Load() >= chaosClients*chaosCalls*share/10 })
		what()
	}
	after(2, func() { c.i.Stop("gateway"); c.i.StartGateway() })
	after(3, c.i.Host.Close) // every machine ends
	after(5, func() { c.i.Stop("control"); c.i.StartControl() })
	after(6, func() { c.i.Stop("node"); c.i.StartNode() })
	after(8, c.i.Host.Close)
	wg.Wait()
	c.rest()
}

// client makes random calls, one after another.
func (c *chaos) client(r *rand.Rand) {
	for range chaosCalls {
		c.call(r, fmt.Sprintf("box-%d", r.IntN(5)))
		c.done.Add(1)
	}
}

func (c *chaos) call(r *rand.Rand, box string) {
	ctx := c.t.Context()
	var res *apiv1.Lifecycle
	var err error
	remove := false
	switch n := r.IntN(100); {
	case n < 20:
		res, err = c.i.Client.CreateSandbox(ctx, apiv1.CreateSandbox{Template: "tiny", Name: box})
	case n < 40:
		res, err = ask(c.i, ctx, sandbox.VerbPause, box)
	case n < 60:
		res, err = ask(c.i, ctx, sandbox.VerbResume, box)
	case n < 70:
		res, err = ask(c.i, ctx, sandbox.VerbRecover, box)
	case n < 80:
		res, err = c.i.Client.DeleteSandbox(ctx, box)
		remove = true
	case n < 88:
		_, err = c.i.Client.Exec(ctx, box, apiv1.Exec{Argv: []string{"true"}, TimeoutSeconds: 5})
	case n < 93:
		_, err = c.i.Client.SetLease(ctx, box, apiv1.PatchLease{TTLSeconds: float64(1 + r.IntN(100)), OnExpiry: []string{"delete", "pause"}[r.IntN(2)]})
	default:
		if op, ok := c.someOperation(r); ok {
			_, err = c.i.Client.CancelOperation(ctx, op)
		}
	}
	if e, ok := errors.AsType[*client.Error](err); ok && !slices.Contains([]string{"not_found", "invalid_state", "name_taken", "unavailable", "canceled",
		"guest_not_ready", "guest_unavailable", "command_lost"}, e.Code) {
		c.t.Errorf("an answer: %s: %v, remedy %q", e.Code, e, e.Remedy)
	}
	if err != nil || res == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ops = append(c.ops, res.Operation.ID)
	if remove {
		c.deletes[res.Operation.ID] = res.Sandbox.ID
	}
}

func (c *chaos) someOperation(r *rand.Rand) (string, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.ops) == 0 {
		return "", false
	}
	return c.ops[r.IntN(len(c.ops))], true
}

// rest waits until all is at rest, and checks it.
func (c *chaos) rest() {
	ctx, cancel := context.WithTimeout(c.t.Context(), chaosEnd)
	defer cancel()
	for _, id := range c.ops {
		op, err := c.i.Client.WaitOperation(ctx, id)
		if op == nil || op.EndedAt == nil { // the error may also be that of the operation
			c.t.Fatalf("operation %s does not end: %+v %v", id, op, err)
		}
		box, remove := c.deletes[id]
		if !remove {
			continue
		}
		if op.State != "succeeded" {
			c.t.Errorf("a delete is %s: %+v", op.State, op.Error)
		}
		if _, err := c.i.Client.Sandbox(ctx, box); !client.IsNotFound(err) {
			c.t.Errorf("sandbox %s after its delete: %v", box, err)
		}
	}
	list, err := c.i.Client.ListSandboxes(ctx, client.SandboxQuery{})
	if err != nil {
		c.t.Fatal(err)
	}
	for _, box := range list.Items {
		if !slices.Contains([]string{"running", "paused", "failed"}, box.State) && box.Lease == nil {
			c.t.Errorf("sandbox %s is %s at rest", box.ID, box.State)
		}
		if res, err := c.i.Client.DeleteSandbox(ctx, box.ID, client.Wait(time.Minute)); err != nil && !client.IsNotFound(err) || err == nil && res.Operation.State != "succeeded" {
			c.t.Errorf("delete at the end: %+v %v", res, err)
		}
	}
	c.eventually("no sandbox is left, and the ledger is exact", func() bool {
		list, err := c.i.Client.ListSandboxes(ctx, client.SandboxQuery{})
		ledger, lerr := c.i.Client.Ledger(ctx)
		return err == nil && lerr == nil && len(list.Items) == 0 && ledger.Drift == 0
	})
	if len(c.ops) < chaosClients {
		c.t.Errorf("only %d operations", len(c.ops))
	}
	c.t.Logf("%d operations, %d deletes", len(c.ops), len(c.deletes))
}

func (c *chaos) eventually(what string, ok func() bool) {
	c.t.Helper()
	deadline := time.After(chaosEnd)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			c.t.Fatalf("not within %s: %s", chaosEnd, what)
		}
	}
}
