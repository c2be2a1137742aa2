package linuxnet_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/sandboxnet"
	"github.com/space-sandbox/space/internal/sandboxnet/linuxnet"
	"github.com/space-sandbox/space/internal/sandboxnet/netlab"
	"github.com/vishvananda/netlink"
)

func inspect(t *testing.T, m *linuxnet.Manager) map[string]sandboxnet.Inventory {
	t.Helper()
	all, err := m.Inspect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]sandboxnet.Inventory{}
	for _, inv := range all {
		byName[inv.Name] = inv
	}
	return byName
}

// TestInspect: a box has exactly what Complete says; what is added by hand shows, goes when it is told to, and leaves the
// box as it was.
func TestInspect(t *testing.T) {
	t.Parallel()
	m, id, _ := newBox(t)
	want, err := m.Complete(id)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[string]sandboxnet.Inventory{want.Name: want}, inspect(t, m)); d != "" {
		t.Errorf("a new box (-want +got):\n%s", d)
	}
	if want.Mount != m.Path(id) || !strings.HasPrefix(want.Mount, m.MountPrefix()) {
		t.Errorf("%+v, prefix %s", want, m.MountPrefix())
	}
	netlab.Open(t, m.Path(id)).Do(t, func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		conn.AddTable(&nftables.Table{Name: "odd", Family: nftables.TableFamilyIPv4})
		if err := conn.Flush(); err != nil {
			return err
		}
		return netlink.LinkAdd(&netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "tap9"}, Mode: netlink.TUNTAP_MODE_TAP})
	})
	got := inspect(t, m)[want.Name]
	if !slices.Contains(got.Links, "tap9") || !slices.Contains(got.Tables, "ip odd") {
		t.Errorf("%+v", got)
	}
	for range 2 { // the second finds nothing to do
		if err := m.RemoveLink(t.Context(), id, "tap9"); err != nil {
			t.Error(err)
		}
		if err := m.RemoveTable(t.Context(), id, "ip odd"); err != nil {
			t.Error(err)
		}
	}
	if d := cmp.Diff(want, inspect(t, m)[want.Name]); d != "" {
		t.Errorf("afterwards (-want +got):\n%s", d)
	}
}

// TestInspectHalfMade: a name without a namespace is seen, one that is no sandbox's too, and others' are not.
func TestInspectHalfMade(t *testing.T) {
	t.Parallel()
	m, other := newManager(t, installationID()), newManager(t, installationID())
	id := sandbox.NewID()
	for _, path := range []string{m.Path(id), m.MountPrefix() + "odd", other.Path(id)} {
		if err := os.WriteFile(path, nil, 0o400); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Remove(path) })
	}
	got := inspect(t, m)
	if len(got) != 2 {
		t.Errorf("%+v", got)
	}
	for _, inv := range got {
		if len(inv.Links)+len(inv.Tables) > 0 || (inv.ID == id) != (inv.Mount == m.Path(id)) || inv.ID != id && inv.ID != "" {
			t.Errorf("%+v", inv)
		}
	}
	if err := m.RemoveLink(t.Context(), id, "tap0"); err != nil {
		t.Error(err)
	}
	if err := m.RemoveTable(t.Context(), sandbox.NewID(), "inet space"); err != nil {
		t.Error(err)
	}
	if _, err := m.Complete("../x"); err == nil {
		t.Error("Complete takes what is not an id")
	}
}

// BenchmarkInspect looks into one box: what a look at the ledger costs for each sandbox.
func BenchmarkInspect(b *testing.B) {
	m, _, _ := newBox(b)
	for b.Loop() {
		if _, err := m.Inspect(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
