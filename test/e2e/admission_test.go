//go:build realvm

package e2e

import (
	"errors"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
)

// nothingHappened checks a refusal that must leave nothing, and say when to come back.
func (i *installation) nothingHappened(err error, status int, code string, live int) {
	i.t.Helper()
	e, ok := errors.AsType[*client.Error](err)
	if !ok || e.Status != status || e.Code != code || !e.Retryable || e.RetryAfter < time.Second || e.Cause == "" || e.Remedy == "" {
		i.t.Errorf("%+v, want %d %s with cause, remedy and Retry-After", err, status, code)
	}
	list, err := i.client.ListSandboxes(i.t.Context(), client.SandboxQuery{})
	if err != nil || len(list.Items) != live {
		i.t.Errorf("%d sandboxes, want %d (%v)", len(list.Items), live, err)
	}
}

// TestNoMemoryLeft: what the host has no memory for is refused before anything exists, and works, with the same
// Idempotency-Key, when there is some again.
func TestNoMemoryLeft(t *testing.T) {
	t.Parallel()
	i := install(t)
	i.start()
	n, err := i.client.Node(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n.MaxSandboxes < 1000 || n.Draining {
		t.Errorf("%+v", n)
	}
	most := int(n.Capacity.MemoryBytes >> 20 * 6 / 10)
	first := i.create(apiv1.CreateSandbox{MemoryMiB: &most})
	create := func() (*apiv1.Lifecycle, error) {
		return i.client.CreateSandbox(t.Context(), apiv1.CreateSandbox{Template: "mini", MemoryMiB: &most},
			client.IdempotencyKey("second"), client.Wait(4*time.Minute))
	}
	_, err = create()
	i.nothingHappened(err, 429, "capacity_exhausted", 1)
	i.delete(first.ID)
	second, err := create()
	if err != nil || second.Sandbox.State != "running" {
		t.Fatalf("with the memory of the first: %+v %v", second, err)
	}
	i.delete(second.Sandbox.ID)
}

// TestDrain: a drained host takes no new work, over a restart, and keeps serving what it has.
func TestDrain(t *testing.T) {
	t.Parallel()
	i := install(t)
	i.start()
	i.create(apiv1.CreateSandbox{Name: "old"})
	if out, err := i.space(t.Context(), "drain", "--wait"); err != nil || !strings.Contains(out, "1, which stay as they are") {
		t.Fatalf("drain: %v\n%s", err, out)
	}
	create := func() error {
		mib := 256
		_, err := i.client.CreateSandbox(t.Context(), apiv1.CreateSandbox{Template: "mini", MemoryMiB: &mib}, client.Wait(4*time.Minute))
		return err
	}
	i.nothingHappened(create(), 503, "draining", 1)
	if out, err := i.space(t.Context(), "down"); err != nil {
		t.Fatalf("down: %v\n%s", err, out)
	}
	<-i.ended
	i.start()
	i.nothingHappened(create(), 503, "draining", 1)
	if got := i.sh("old", "echo on"); got != "on\n" {
		t.Errorf("%q", got)
	}
	i.pause("old")
	i.resume("old")
	if out, err := i.space(t.Context(), "drain", "--undo"); err != nil {
		t.Fatalf("undo: %v\n%s", err, out)
	}
	if err := create(); err != nil {
		t.Errorf("after the drain: %v", err)
	}
}
