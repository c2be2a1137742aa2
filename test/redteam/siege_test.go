package redteam_test

import (
	"testing"

	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/sandboxnet/netlab"
	"github.com/space-sandbox/space/test/redteam/finding"
)

// siege is everything that looks out for what one guest sends: canaries and a recorder on the host, a recorder at the
// guest's own box (there it must arrive, or it was never sent) and one at another sandbox's (there it must not).
type siege struct {
	plan                     finding.Plan
	canary                   *canary
	host, ownBox, otherGuest *recorder
}

// besiege prepares an attack from the guest of a box that exists.
func besiege(t *testing.T, installation string, id sandbox.ID) *siege {
	t.Helper()
	s := &siege{canary: startCanary(t)}
	s.plan = newPlan(t, s.canary.port)
	var err error
	if s.host, err = record(s.plan, ""); err != nil {
		t.Fatal(err)
	}
	s.ownBox = recordIn(t, netlab.Open(t, "/run/netns/space-"+installation+"-"+string(id)), s.plan, "tap0")

	other := netlab.New(t)
	wire(t, other, newBox(t, installation, sandbox.NewID()))
	other.Serve(t, s.plan.AgentPort, s.plan.Open[0])
	s.otherGuest = recordIn(t, other, s.plan, "eth0")
	return s
}

// judge ends the attack.
func (s *siege) judge(t *testing.T, findings []finding.Finding) summary {
	t.Helper()
	arrived, strays := s.host.finish(t)
	elsewhere, _ := s.otherGuest.finish(t)
	for seq := range elsewhere {
		t.Errorf("attempt %d arrived in another sandbox", seq)
		arrived[seq] = true
	}
	sent, _ := s.ownBox.finish(t)
	wantSent(t, findings, sent)
	s.canary.wantNoGuest(t, s.plan)
	return wantAllBlocked(t, findings, arrived, strays)
}
