package spacetest_test

import (
	"errors"
	"testing"
	"time"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
	"github.com/space-sandbox/space/internal/spacetest"
)

// TestDrainOverRestarts: a drain lasts until somebody ends it, and stands in nobody's way but that of new work.
func TestDrainOverRestarts(t *testing.T) {
	t.Parallel()
	i := spacetest.Start(t)
	create := func() (*apiv1.Lifecycle, error) {
		return i.Client.CreateSandbox(t.Context(), apiv1.CreateSandbox{Template: "tiny"}, client.IdempotencyKey("k"), client.Wait(time.Minute))
	}
	if d, err := i.Client.Drain(t.Context(), true); err != nil || !d.Draining || d.OperationsUnderWay != 0 {
		t.Fatalf("%+v %v", d, err)
	}
	for range 2 {
		_, err := create()
		if e, ok := errors.AsType[*client.Error](err); !ok || e.Status != 503 || e.Code != "draining" || e.RetryAfter != 30*time.Second {
			t.Errorf("%+v", err)
		}
		i.Stop("control")
		i.StartControl()
	}
	n, err := i.Client.Node(t.Context())
	if err != nil || !n.Draining || n.Sandboxes != 0 || n.MaxSandboxes == 0 {
		t.Errorf("%+v %v", n, err)
	}
	if d, err := i.Client.Drain(t.Context(), false); err != nil || d.Draining {
		t.Fatalf("%+v %v", d, err)
	}
	if res, err := create(); err != nil || res.Sandbox.State != "running" {
		t.Errorf("%+v %v", res, err)
	}
}
