package linuxnet_test

import (
	"net/netip"

	"github.com/space-sandbox/space/internal/guestnet"
	"github.com/space-sandbox/space/internal/sandboxnet/netlab/frame"
)

// strangeMAC is nobody's.
const strangeMAC = "02:00:00:00:00:99"

func guestAddr() netip.Addr { return guestnet.GuestAddr() }
func hostAddr() netip.Addr  { return guestnet.HostAddr() }

// Addresses outside: documentation ranges, the metadata service, and both ends in IPv6.
func internet() netip.Addr { return netip.MustParseAddr("192.0.2.1") }
func metadata() netip.Addr { return netip.MustParseAddr("169.254.169.254") }
func stranger() netip.Addr { return netip.MustParseAddr("198.51.100.7") }
func guest6() netip.Addr   { return netip.MustParseAddr("2001:db8:1::15") }
func host6() netip.Addr    { return netip.MustParseAddr("2001:db8:1::16") }
func inet6() netip.Addr    { return netip.MustParseAddr("2001:db8::1") }

// toHost is a frame with the right addresses on it.
func toHost(kind uint16, payload []byte) []byte {
	return frame.Ethernet(guestnet.HostMAC, guestnet.GuestMAC, kind, payload)
}

// ip is a packet from the guest's address to the host.
func ip(dst netip.Addr, protocol byte, payload []byte) []byte {
	return frame.IPv4{Src: guestAddr(), Dst: dst, Protocol: protocol}.With(payload)
}

// segment is a whole frame with a TCP segment from the guest.
func segment(dst netip.Addr, sport, dport uint16, flags byte) []byte {
	return toHost(frame.TypeIPv4, ip(dst, frame.ProtoTCP, frame.TCP(guestAddr(), dst, sport, dport, flags)))
}
