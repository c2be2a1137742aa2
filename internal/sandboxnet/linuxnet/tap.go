package linuxnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/space-sandbox/space/internal/guestnet"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	tunDevice = "/dev/net/tun"
	tapName   = "tap0"
	tapFlags  = unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR
	// tapQueue bounds what the kernel keeps for a guest that does not read, in packets.
	tapQueue = 256
	// attachLimit is how long the kernel may take to start sending through a tap (its own limit is a second), and
	// attachPause the time between two looks.
	attachLimit = 5 * time.Second
	attachPause = time.Millisecond
)

// openTap attaches to the calling thread's tap0, or makes it. One descriptor at a time: the kernel refuses a second.
func openTap() (int, error) {
	fd, err := unix.Open(tunDevice, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", tunDevice, err)
	}
	req, err := unix.NewIfreq(tapName)
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	req.SetUint16(tapFlags)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("attach to %s: %w", tapName, err)
	}
	return fd, nil
}

// makeTap makes the persistent tap, down, with everything on it that does not need it up.
func makeTap(nl *netlink.Handle) (netlink.Link, error) {
	fd, err := openTap()
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	// An owner, because without one anybody inside the namespace could attach.
	for _, c := range []struct {
		name string
		req  uint
		arg  int
	}{{"owner", unix.TUNSETOWNER, 0}, {"offloads", unix.TUNSETOFFLOAD, 0}, {"persistence", unix.TUNSETPERSIST, 1}} {
		if err := unix.IoctlSetInt(fd, c.req, c.arg); err != nil {
			return nil, fmt.Errorf("%s of %s: %w", c.name, tapName, err)
		}
	}
	link, err := nl.LinkByName(tapName)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", tapName, err)
	}
	mac, err := net.ParseMAC(guestnet.HostMAC)
	if err != nil {
		return nil, fmt.Errorf("host MAC: %w", err)
	}
	if err := nl.LinkSetHardwareAddr(link, mac); err != nil {
		return nil, fmt.Errorf("MAC of %s: %w", tapName, err)
	}
	if err := nl.LinkSetTxQLen(link, tapQueue); err != nil {
		return nil, fmt.Errorf("queue of %s: %w", tapName, err)
	}
	if err := nl.LinkSetARPOff(link); err != nil {
		return nil, fmt.Errorf("switch ARP off on %s: %w", tapName, err)
	}
	if err := nl.LinkSetMulticastOff(link); err != nil {
		return nil, fmt.Errorf("switch multicast off on %s: %w", tapName, err)
	}
	return link, nil
}

// attachTap opens the tap and waits until the kernel sends through it: a link that has just got its carrier drops what
// is sent until a kernel thread has noticed. Usually that is before the first look.
func attachTap(ctx context.Context) (int, error) {
	nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return -1, fmt.Errorf("route netlink: %w", err)
	}
	defer nl.Close()
	fd, err := openTap()
	if err != nil {
		return -1, err
	}
	for deadline := time.Now().Add(attachLimit); ; {
		link, err := nl.LinkByName(tapName)
		if err == nil && link.Attrs().OperState == netlink.OperUp {
			return fd, nil
		}
		if err == nil && time.Now().After(deadline) {
			err = fmt.Errorf("%s is %s after %s", tapName, link.Attrs().OperState, attachLimit)
		}
		if err = errors.Join(err, ctx.Err()); err != nil {
			unix.Close(fd)
			return -1, fmt.Errorf("wait for %s: %w", tapName, err)
		}
		select {
		case <-time.After(attachPause):
		case <-ctx.Done():
		}
	}
}

// raiseTap brings the link up and gives it its address, and with that the only route and the only neighbour.
func raiseTap(nl *netlink.Handle, link netlink.Link) error {
	if err := nl.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring %s up: %w", tapName, err)
	}
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: guestnet.HostAddr().AsSlice(), Mask: net.CIDRMask(guestnet.PrefixLen, 32)}}
	if err := nl.AddrAdd(link, addr); err != nil {
		return fmt.Errorf("address of %s: %w", tapName, err)
	}
	mac, err := net.ParseMAC(guestnet.GuestMAC)
	if err != nil {
		return fmt.Errorf("guest MAC: %w", err)
	}
	if err := nl.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, Family: unix.AF_INET, State: netlink.NUD_PERMANENT,
		IP: guestnet.GuestAddr().AsSlice(), HardwareAddr: mac}); err != nil {
		return fmt.Errorf("neighbour on %s: %w", tapName, err)
	}
	return nil
}

// removeTap ends the link of the calling thread's namespace. Down is enough when nobody is attached: the link then goes
// with the namespace, in the kernel's own time, and nothing passes while the rules go. While a VMM still holds it, it
// is removed at once, which waits for the kernel to forget it (some 30 ms).
func removeTap() error {
	nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("route netlink: %w", err)
	}
	defer nl.Close()
	link, err := nl.LinkByName(tapName)
	if _, none := errors.AsType[netlink.LinkNotFoundError](err); none {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find %s: %w", tapName, err)
	}
	if err := nl.LinkSetDown(link); err != nil {
		return fmt.Errorf("bring %s down: %w", tapName, err)
	}
	fd, err := openTap()
	if err == nil {
		unix.Close(fd)
		return nil
	}
	if err := nl.LinkDel(link); err != nil {
		return fmt.Errorf("remove %s: %w", tapName, err)
	}
	return nil
}

// checkAlone makes sure that nothing but the tap is up. Some hosts put fallback tunnels (sit0, tunl0, gre0) into every
// new namespace; they cannot be removed there. Down, without address or route, and behind rules that drop, they carry
// nothing; the operator is told once.
func (m *Manager) checkAlone(nl *netlink.Handle) error {
	links, err := nl.LinkList()
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	var stray []string
	for _, l := range links {
		a := l.Attrs()
		if a.Name == tapName {
			continue
		}
		if a.Flags&net.FlagUp != 0 {
			return fmt.Errorf("interface %s is up in a new network namespace", a.Name)
		}
		if a.Name != "lo" {
			stray = append(stray, a.Name)
		}
	}
	if len(stray) > 0 {
		m.warnStray.Do(func() {
			m.log.Warn("the kernel puts fallback tunnels into sandbox networks; they stay down",
				"links", strings.Join(stray, ","), "remedy", "sysctl -w net.core.fb_tunnels_only_for_init_net=1")
		})
	}
	return nil
}

// tapFile wraps a tap descriptor so that the runtime's poller serves it.
func tapFile(fd int) *os.File { return os.NewFile(uintptr(fd), tapName) }
