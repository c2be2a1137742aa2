//go:build realvm

package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
	"github.com/space-sandbox/space/internal/part"
)

// fillPool takes the pool's space until a little of its reserve is gone; the returned function gives it back.
func (i *installation) fillPool() (giveBack func()) {
	i.t.Helper()
	n, err := i.client.Node(i.t.Context())
	if err != nil {
		i.t.Fatal(err)
	}
	if n.Pool.ReserveBytes == 0 || n.Pool.FreeBytes < n.Pool.ReserveBytes {
		i.t.Fatalf("pool: %+v", n.Pool)
	}
	path := filepath.Join(i.dir, "pool", "ballast")
	f, err := os.Create(path)
	if err != nil {
		i.t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, n.Pool.FreeBytes-n.Pool.ReserveBytes+16<<20); err != nil {
		i.t.Fatal(err)
	}
	return func() {
		i.t.Helper()
		if err := os.Remove(path); err != nil {
			i.t.Fatal(err)
		}
	}
}

// awaitState waits until a sandbox is in a state with a reason ("" for none).
func (i *installation) awaitState(ref, state, reason string) {
	i.t.Helper()
	i.eventually(time.Minute, ref+" is "+state+" "+reason, func() bool {
		got, err := i.client.Sandbox(i.t.Context(), ref)
		return err == nil && got.State == state && (got.Reason == nil && reason == "" || got.Reason != nil && *got.Reason == reason)
	})
}

// poolFull checks that a call was refused, or its operation failed, because of the pool.
func (i *installation) poolFull(what string, res *apiv1.Lifecycle, err error) {
	i.t.Helper()
	if err == nil && res.Operation.Error != nil {
		if res.Operation.Error.Code != "pool_full" || res.Operation.Error.Remedy == "" {
			i.t.Errorf("%s: %+v", what, res.Operation.Error)
		}
		return
	}
	if e, ok := errors.AsType[*client.Error](err); !ok || e.Code != "pool_full" || e.Remedy == "" {
		i.t.Errorf("%s: %v %v", what, res, err)
	}
}

// TestPoolFull: when the pool is nearly full the sandboxes stand still instead of failing, and go on by themselves; what a
// user has paused stays so, and delete works.
func TestPoolFull(t *testing.T) {
	t.Parallel()
	i := install(t)
	i.start()
	for _, name := range []string{"worker", "users", "other"} {
		i.create(apiv1.CreateSandbox{Name: name})
	}
	cmd, err := i.client.CreateCommand(t.Context(), "worker", apiv1.CreateCommand{Start: true,
		Argv: []string{"sh", "-c", "n=0; while :; do n=$((n+1)); echo $n | tee -a kept; sleep 0.05; done"}})
	if err != nil {
		t.Fatal(err)
	}
	r := &counter{i: i, id: cmd.ID}
	r.advance(5)
	i.pause("users")
	giveBack := i.fillPool()
	i.awaitState("worker", "paused", "pool_full")
	i.awaitState("other", "paused", "pool_full")
	i.awaitState("users", "paused", "")
	if got, err := i.client.Sandbox(t.Context(), "worker"); err != nil || got.DesiredState != "running" {
		t.Errorf("%+v, %v", got, err)
	}
	res, err := i.client.ResumeSandbox(t.Context(), "worker", client.Wait(2*time.Minute))
	i.poolFull("resume", res, err)
	_, err = i.client.CreateSandbox(t.Context(), apiv1.CreateSandbox{Name: "late", Template: "mini"}, client.Wait(2*time.Minute))
	i.nothingHappened(err, 429, "capacity_exhausted", 3)
	for _, name := range []string{part.Node, part.Control} {
		i.killPart(name)
	}
	i.eventually(time.Minute, "SPACE is ready again", func() bool { return i.client.Ready(t.Context()) == nil })
	i.awaitState("worker", "paused", "pool_full")
	i.pause("other") // the user's from now on
	i.awaitState("other", "paused", "")
	giveBack()
	i.awaitState("worker", "running", "")
	r.advance(5)
	i.awaitState("users", "paused", "")
	i.awaitState("other", "paused", "")
	i.resume("users")
	i.sh("users", "true")
	giveBack = i.fillPool()
	i.awaitState("users", "paused", "pool_full")
	for _, name := range []string{"users", "other", "worker"} {
		i.delete(name)
	}
	giveBack()
}
