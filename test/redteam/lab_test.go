// Package redteam_test proves that nothing leaves a guest: the probe runs where nothing is in its way and must get
// everything through, then behind a box and must get nothing through, while recorders look at every link of the host.
// With the build tag realvm it runs inside a real guest.
package redteam_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"os/exec"
	"slices"
	"testing"

	"github.com/space-sandbox/space/internal/guestnet"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/sandboxnet"
	"github.com/space-sandbox/space/internal/sandboxnet/linuxnet"
	"github.com/space-sandbox/space/internal/sandboxnet/netlab"
	"github.com/space-sandbox/space/test/redteam/finding"
)

// guestLink is the guest's side of a link, as the agent sets it up.
func guestLink() netlab.Link {
	return netlab.Link{Name: "eth0", MAC: guestnet.GuestMAC, Gateway: guestnet.HostAddr(),
		Addrs:      []netip.Prefix{netip.PrefixFrom(guestnet.GuestAddr(), guestnet.PrefixLen)},
		Neighbours: map[netip.Addr]string{guestnet.HostAddr(): guestnet.HostMAC}}
}

// positiveControl runs the probe against a namespace that has all the addresses it aims at and no rules.
func positiveControl(t *testing.T) summary {
	t.Helper()
	canary := startCanary(t)
	plan := newPlan(t, canary.port)
	guest, far := netlab.New(t), netlab.New(t)
	far.Addresses(t, slices.Concat(plan.Internet, plan.Metadata, plan.Internet6, plan.Hosts, plan.Hosts6)...)
	for _, path := range []string{"ipv4/icmp_ratelimit", "ipv6/icmp/ratelimit", "ipv4/conf/all/rp_filter", "ipv4/conf/default/rp_filter"} {
		far.Setting(t, path, "0")
	}
	netlab.Veth(t, guest, guestLink(), far, netlab.Link{Name: "far", MAC: guestnet.HostMAC,
		Addrs: []netip.Prefix{netip.PrefixFrom(guestnet.HostAddr(), guestnet.PrefixLen),
			netip.MustParsePrefix("2001:db8:1::16/64")},
		Routes: []netip.Prefix{netip.MustParsePrefix("198.51.100.7/32")}})
	far.Serve(t, unique(plan.Open, plan.Closed, []uint16{53, 80, 443, plan.AgentPort})...)
	guest.Serve(t, plan.AgentPort) // an agent that talks to anybody

	r := recordIn(t, far, plan, "far")
	findings := runProbe(t, guest, plan)
	arrived, _ := r.finish(t)
	return wantAllSucceed(t, findings, arrived)
}

// wire puts a namespace in the place of a box's guest.
func wire(t *testing.T, guest *netlab.Namespace, box sandboxnet.Box) {
	t.Helper()
	inner := guest.Tap(t, guestLink())
	outer, err := box.Tap(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	netlab.Wire(t, inner, outer)
}

func newBox(t *testing.T, installation string, id sandbox.ID) sandboxnet.Box {
	t.Helper()
	m, err := linuxnet.New(linuxnet.Config{InstallationID: installation, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	box, err := m.Create(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		box.Close()
		if err := m.Delete(context.WithoutCancel(t.Context()), id); err != nil {
			t.Error(err)
		}
	})
	return box
}

func recordIn(t *testing.T, ns *netlab.Namespace, plan finding.Plan, link string) *recorder {
	t.Helper()
	var r *recorder
	ns.Do(t, func() error {
		var err error
		r, err = record(plan, link)
		return err
	})
	return r
}

// runProbe runs the probe in a namespace and returns its report.
func runProbe(t *testing.T, ns *netlab.Namespace, plan finding.Plan) []finding.Finding {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), buildProbe(t), "-plan", writePlan(t, plan))
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := ns.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("probe: %v\n%s", err, errs.String())
	}
	return parseFindings(t, out.String())
}

func unique(lists ...[]uint16) []uint16 {
	all := slices.Concat(lists...)
	slices.Sort(all)
	return slices.Compact(all)
}
