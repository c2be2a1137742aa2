//go:build !realvm

package redteam_test

import (
	"testing"

	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/sandboxnet/netlab"
)

func TestPositiveControl(t *testing.T) {
	t.Parallel()
	t.Log(positiveControl(t))
}

// TestBehindABox runs the probe in a namespace wired to a box's tap: all of the box, and neither a machine nor an agent.
func TestBehindABox(t *testing.T) {
	t.Parallel()
	installation, id := string(sandbox.NewID()[:6]), sandbox.NewID()
	box := newBox(t, installation, id)
	guest := netlab.New(t)
	wire(t, guest, box)
	s := besiege(t, installation, id)
	t.Log(s.judge(t, runProbe(t, guest, s.plan)))
}
