// Package netlab makes network namespaces for tests: some to play guests in, some without any of our rules, in which
// the same packets that a box must stop do get an answer. Without such a control a test that sees silence proves
// nothing. Everything goes with the test. It needs root.
package netlab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/space-sandbox/space/internal/sandboxnet/nsthread"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Namespace is a network namespace of a test.
type Namespace struct{ ns *os.File }

// New makes an empty namespace with loopback up.
func New(t testing.TB) *Namespace {
	t.Helper()
	ns, err := nsthread.New()
	if err != nil {
		t.Fatalf("network namespace (root is needed): %v", err)
	}
	t.Cleanup(func() { ns.Close() })
	n := &Namespace{ns: ns}
	n.Do(t, func() error { return withLink("lo", netlink.LinkSetUp) })
	return n
}

// Open opens the namespace mounted at path.
func Open(t testing.TB, path string) *Namespace {
	t.Helper()
	ns, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return &Namespace{ns: ns}
}

// File is the namespace's descriptor; it stays the Namespace's.
func (n *Namespace) File() *os.File { return n.ns }

// Do runs f in the namespace.
func (n *Namespace) Do(t testing.TB, f func() error) {
	t.Helper()
	if err := nsthread.In(n.ns, f); err != nil {
		t.Fatal(err)
	}
}

// Start starts a command in the namespace.
func (n *Namespace) Start(cmd *exec.Cmd) error { return nsthread.In(n.ns, cmd.Start) }

// Link describes one end of a link.
type Link struct {
	Name, MAC string
	Addrs     []netip.Prefix
	// Neighbours are static: address to MAC.
	Neighbours map[netip.Addr]string
	// Routes go out of this link without a gateway.
	Routes []netip.Prefix
	// Gateway, if set, is the way to everything else.
	Gateway netip.Addr
}

// Tap makes a tap with vnet headers in the namespace, up, and returns the end that a machine would hold.
func (n *Namespace) Tap(t testing.TB, l Link) *os.File {
	t.Helper()
	var fd int
	n.Do(t, func() error {
		var err error
		if fd, err = openTap(l.Name); err != nil {
			return err
		}
		return configure(l)
	})
	f := os.NewFile(uintptr(fd), l.Name)
	t.Cleanup(func() { f.Close() })
	return f
}

func openTap(name string) (int, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("open tun: %w", err)
	}
	req, err := unix.NewIfreq(name)
	if err == nil {
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("make tap %s: %w", name, err)
	}
	return fd, nil
}

// Veth makes a pair of links between two namespaces, both up.
func Veth(t testing.TB, a *Namespace, la Link, b *Namespace, lb Link) {
	t.Helper()
	a.Do(t, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = la.Name
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: lb.Name, PeerNamespace: netlink.NsFd(int(b.ns.Fd()))}
		if err := netlink.LinkAdd(veth); err != nil {
			return fmt.Errorf("make veth: %w", err)
		}
		return configure(la)
	})
	b.Do(t, func() error { return configure(lb) })
}

// configure sets the link of the calling thread's namespace up as described.
func configure(l Link) error {
	return withLink(l.Name, func(link netlink.Link) error {
		if l.MAC != "" {
			mac, err := net.ParseMAC(l.MAC)
			if err != nil {
				return err
			}
			if err := netlink.LinkSetHardwareAddr(link, mac); err != nil {
				return fmt.Errorf("MAC of %s: %w", l.Name, err)
			}
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return fmt.Errorf("bring %s up: %w", l.Name, err)
		}
		for _, p := range l.Addrs {
			addr := &netlink.Addr{IPNet: ipNet(p), Flags: unix.IFA_F_NODAD}
			if err := netlink.AddrAdd(link, addr); err != nil {
				return fmt.Errorf("address %s: %w", p, err)
			}
		}
		for ip, text := range l.Neighbours {
			mac, err := net.ParseMAC(text)
			if err != nil {
				return err
			}
			n := &netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT, IP: ip.AsSlice(), HardwareAddr: mac}
			if err := netlink.NeighSet(n); err != nil {
				return fmt.Errorf("neighbour %s: %w", ip, err)
			}
		}
		for _, p := range l.Routes {
			r := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(p), Scope: netlink.SCOPE_LINK}
			if err := netlink.RouteAdd(r); err != nil {
				return fmt.Errorf("route %s: %w", p, err)
			}
		}
		if l.Gateway.IsValid() {
			r := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: l.Gateway.AsSlice()}
			if err := netlink.RouteAdd(r); err != nil {
				return fmt.Errorf("default route by %s: %w", l.Gateway, err)
			}
		}
		return nil
	})
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func withLink(name string, f func(netlink.Link) error) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	return f(link)
}

// Setting writes a kernel setting of the namespace: a path below /proc/sys/net.
func (n *Namespace) Setting(t testing.TB, path, value string) {
	t.Helper()
	n.Do(t, func() error { return os.WriteFile("/proc/sys/net/"+path, []byte(value), 0) })
}

// Addresses gives the namespace more addresses of its own, on loopback.
func (n *Namespace) Addresses(t testing.TB, addrs ...netip.Addr) {
	t.Helper()
	n.Do(t, func() error {
		return withLink("lo", func(lo netlink.Link) error {
			for _, a := range addrs {
				p := netip.PrefixFrom(a, a.BitLen())
				if err := netlink.AddrAdd(lo, &netlink.Addr{IPNet: ipNet(p), Flags: unix.IFA_F_NODAD}); err != nil {
					return fmt.Errorf("address %s: %w", a, err)
				}
			}
			return nil
		})
	})
}

// Wire carries frames between the ends of two taps, as a machine's network card would, until the test ends. Both must
// have vnet headers of the same size.
func Wire(t testing.TB, a, b *os.File) {
	t.Helper()
	var wg sync.WaitGroup
	carry := func(to, from *os.File) {
		frame := make([]byte, 70_000)
		for {
			n, err := from.Read(frame)
			if err != nil {
				return
			}
			if _, err := to.Write(frame[:n]); err != nil && !isRefused(err) {
				return
			}
		}
	}
	wg.Go(func() { carry(a, b) })
	wg.Go(func() { carry(b, a) })
	t.Cleanup(func() {
		a.Close()
		b.Close()
		wg.Wait()
	})
}

// isRefused tells frames that the kernel does not want (an odd header) from a tap that is gone.
func isRefused(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EIO) || errors.Is(err, unix.ENOBUFS)
}
