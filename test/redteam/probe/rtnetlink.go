package main

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/space-sandbox/space/internal/sandboxnet/netlab/frame"
	"golang.org/x/sys/unix"
)

// A few requests of rtnetlink by hand, so that the probe needs no library and no tool in the guest.

// request sends one message and waits for the kernel's verdict.
func request(kind uint16, flags uint16, header []byte, attrs ...[]byte) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	defer unix.Close(fd)
	body := header
	for _, a := range attrs {
		body = append(body, a...)
	}
	msg := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+len(body)))
	msg = binary.NativeEndian.AppendUint16(msg, kind)
	msg = binary.NativeEndian.AppendUint16(msg, flags|unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	msg = append(append(msg, make([]byte, 8)...), body...) // sequence and port: 0
	if err := unix.Sendto(fd, msg, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	buf := make([]byte, 8192)
	n, _, err := unix.Recvfrom(fd, buf, 0)
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	if n < unix.NLMSG_HDRLEN+4 {
		return fmt.Errorf("netlink: an answer of %d bytes", n)
	}
	if code := int32(binary.NativeEndian.Uint32(buf[unix.NLMSG_HDRLEN:])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

func attribute(kind uint16, value []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
	b = append(binary.NativeEndian.AppendUint16(b, kind), value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func number(v int) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(v)) }

func family(a netip.Addr) byte {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

const create = unix.NLM_F_CREATE | unix.NLM_F_REPLACE

// addAddress gives an interface an address, and the function that takes it away.
func (p *prober) addAddress(link string, prefix netip.Prefix) (undo func(), err error) {
	nif, err := net.InterfaceByName(link)
	if err != nil {
		return nil, err
	}
	a := prefix.Addr()
	header := append([]byte{family(a), byte(prefix.Bits()), unix.IFA_F_NODAD, 0}, number(nif.Index)...)
	attrs := [][]byte{attribute(unix.IFA_LOCAL, a.AsSlice()), attribute(unix.IFA_ADDRESS, a.AsSlice())}
	if err := request(unix.RTM_NEWADDR, create, header, attrs...); err != nil {
		return nil, fmt.Errorf("address %s on %s: %w", prefix, link, err)
	}
	return func() { request(unix.RTM_DELADDR, 0, header, attrs...) }, nil
}

// addRoute says that a prefix is on the link.
func (p *prober) addRoute(prefix netip.Prefix) (undo func(), err error) {
	header := []byte{family(prefix.Addr()), byte(prefix.Bits()), 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_BOOT,
		unix.RT_SCOPE_LINK, unix.RTN_UNICAST, 0, 0, 0, 0}
	attrs := [][]byte{attribute(unix.RTA_DST, prefix.Addr().AsSlice()), attribute(unix.RTA_OIF, number(p.link.Index))}
	if err := request(unix.RTM_NEWROUTE, create, header, attrs...); err != nil {
		return nil, fmt.Errorf("route %s: %w", prefix, err)
	}
	return func() { request(unix.RTM_DELROUTE, 0, header, attrs...) }, nil
}

// addNeighbour says behind which hardware address an address is.
func (p *prober) addNeighbour(a netip.Addr, mac string) (undo func(), err error) {
	header := append([]byte{family(a), 0, 0, 0}, number(p.link.Index)...)
	header = append(header, unix.NUD_PERMANENT, 0, 0, 0)
	attrs := [][]byte{attribute(unix.NDA_DST, a.AsSlice()), attribute(unix.NDA_LLADDR, frame.MAC(mac))}
	if err := request(unix.RTM_NEWNEIGH, create, header, attrs...); err != nil {
		return nil, fmt.Errorf("neighbour %s: %w", a, err)
	}
	if a == p.plan.HostAddr {
		return func() {}, nil // it was there before
	}
	return func() { request(unix.RTM_DELNEIGH, 0, header, attrs...) }, nil
}

// setMAC sets the interface's hardware address.
func (p *prober) setMAC(mac string) error {
	header := append([]byte{unix.AF_UNSPEC, 0, 0, 0}, number(p.link.Index)...)
	header = append(header, make([]byte, 8)...)
	return request(unix.RTM_NEWLINK, 0, header, attribute(unix.IFLA_ADDRESS, frame.MAC(mac)))
}
