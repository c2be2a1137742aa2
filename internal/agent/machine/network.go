package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"

	"github.com/space-sandbox/space/internal/guestnet"
)

const (
	loopbackName = "lo"
	linkName     = "eth0"
)

// startNetwork gives the guest its fixed address. The host's hardware address is fixed too, and no ARP crosses the
// link. IPv6 is off on it: nothing would carry it; ::1 stays for programs that talk to themselves.
func (b *booter) startNetwork(context.Context) (err error) {
	loopback, err := net.InterfaceByName(loopbackName)
	if err != nil {
		return err
	}
	link, err := net.InterfaceByName(linkName)
	if err != nil {
		return fmt.Errorf("%s: %w", linkName, err)
	}
	if err := disableIPv6("default", linkName); err != nil {
		return err
	}
	mac, err := net.ParseMAC(guestnet.HostMAC)
	if err != nil {
		return err
	}
	r, err := openRtnetlink()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.linkUp(loopback.Index); err != nil {
		return err
	}
	if err := r.addAddress(link.Index, netip.PrefixFrom(guestnet.GuestAddr(), guestnet.PrefixLen)); err != nil {
		return err
	}
	if err := r.linkUp(link.Index); err != nil {
		return err
	}
	if err := r.addNeighbour(link.Index, guestnet.HostAddr(), mac); err != nil {
		return err
	}
	if err := r.addDefaultRoute(link.Index, guestnet.HostAddr()); err != nil {
		return err
	}
	if err := writeResolver("/etc"); err != nil {
		b.log.Warn("the name server could not be written", "error", err)
	}
	return nil
}

func disableIPv6(names ...string) error {
	for _, name := range names {
		err := os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("1"), 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // a kernel without IPv6
			return err
		}
	}
	return nil
}
