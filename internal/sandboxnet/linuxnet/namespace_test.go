package linuxnet_test

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/space-sandbox/space/internal/guestnet"
	"github.com/space-sandbox/space/internal/sandboxnet/netlab"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestNamespaceIsBare looks at everything that a namespace can have.
func TestNamespaceIsBare(t *testing.T) {
	t.Parallel()
	m, id, box := newBox(t)
	tap, err := box.Tap(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tap.Close()
	ns := netlab.Open(t, m.Path(id))
	ns.Do(t, func() error { return bareLinks(t) })
	ns.Do(t, func() error { return bareRoutes(t) })
	ns.Do(t, func() error { return onlyNeighbour(t) })
}

func bareLinks(t *testing.T) error {
	links, err := netlink.LinkList()
	if err != nil {
		return err
	}
	for _, l := range links {
		a := l.Attrs()
		if a.Name != "tap0" {
			if a.Flags&net.FlagUp != 0 {
				t.Errorf("%s is up", a.Name)
			}
			continue
		}
		if a.Flags&net.FlagUp == 0 || a.RawFlags&unix.IFF_NOARP == 0 || a.Flags&net.FlagMulticast != 0 {
			t.Errorf("flags of tap0: %s, raw %#x; want up, no ARP, no multicast", a.Flags, a.RawFlags)
		}
		if a.HardwareAddr.String() != guestnet.HostMAC {
			t.Errorf("MAC of tap0: %s", a.HardwareAddr)
		}
		if a.Promisc != 0 || a.MasterIndex != 0 {
			t.Errorf("tap0 is promiscuous (%d) or in a bridge (%d)", a.Promisc, a.MasterIndex)
		}
	}
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	if len(addrs) != 1 || addrs[0].IPNet.String() != fmt.Sprintf("%s/%d", guestnet.HostAddr(), guestnet.PrefixLen) {
		t.Errorf("addresses: %v", addrs)
	}
	return nil
}

func bareRoutes(t *testing.T) error {
	var got []string
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return err
		}
		for _, r := range routes {
			if r.Type == unix.RTN_UNICAST {
				got = append(got, fmt.Sprintf("%v via %v", r.Dst, r.Gw))
			}
		}
	}
	if want := []string{"169.254.0.20/30 via <nil>"}; !slices.Equal(got, want) {
		t.Errorf("routes: %v, want %v", got, want)
	}
	return nil
}

func onlyNeighbour(t *testing.T) error {
	link, err := netlink.LinkByName("tap0")
	if err != nil {
		return err
	}
	neighbours, err := netlink.NeighList(link.Attrs().Index, netlink.FAMILY_V4)
	if err != nil {
		return err
	}
	if len(neighbours) != 1 || neighbours[0].State != netlink.NUD_PERMANENT ||
		neighbours[0].HardwareAddr.String() != guestnet.GuestMAC || neighbours[0].IP.String() != guestnet.GuestAddr().String() {
		t.Errorf("neighbours: %v", neighbours)
	}
	return nil
}

// TestSettings reads back what keeps packets from being forwarded, also on the link itself. The host of this test may
// forward: a new namespace would have copied that.
func TestSettings(t *testing.T) {
	t.Parallel()
	m, id, _ := newBox(t)
	want := map[string]string{
		"ipv4/ip_forward": "0", "ipv4/icmp_echo_ignore_all": "1",
		"netfilter/nf_conntrack_tcp_loose": "0", "netfilter/nf_conntrack_tcp_timeout_syn_sent": "10",
		"ipv6/conf/tap0/disable_ipv6": "1", "ipv6/conf/all/disable_ipv6": "1",
	}
	for name, value := range map[string]string{"forwarding": "0", "route_localnet": "0", "accept_redirects": "0",
		"send_redirects": "0", "accept_source_route": "0", "accept_local": "0", "proxy_arp": "0", "rp_filter": "1", "arp_ignore": "8"} {
		want["ipv4/conf/tap0/"+name] = value
		want["ipv4/conf/all/"+name] = value
	}
	netlab.Open(t, m.Path(id)).Do(t, func() error {
		for path, value := range want {
			got, err := os.ReadFile("/proc/sys/net/" + path)
			if err != nil {
				return err
			}
			if strings.TrimSpace(string(got)) != value {
				t.Errorf("%s = %s, want %s", path, strings.TrimSpace(string(got)), value)
			}
		}
		return nil
	})
}

// TestEveryChainDropsByDefault makes sure that a rule that is missing lets nothing through.
func TestEveryChainDropsByDefault(t *testing.T) {
	t.Parallel()
	m, id, _ := newBox(t)
	netlab.Open(t, m.Path(id)).Do(t, func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		chains, err := conn.ListChains()
		if err != nil {
			return err
		}
		var names []string
		for _, c := range chains {
			names = append(names, c.Name)
			if c.Policy == nil || *c.Policy != nftables.ChainPolicyDrop {
				t.Errorf("chain %s does not drop by default", c.Name)
			}
		}
		slices.Sort(names)
		if want := []string{"forward", "guest", "input", "output"}; !slices.Equal(names, want) {
			t.Errorf("chains %v, want %v", names, want)
		}
		return nil
	})
}
