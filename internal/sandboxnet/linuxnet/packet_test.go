package linuxnet_test

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"github.com/space-sandbox/space/internal/guestnet"
	"golang.org/x/sys/unix"
)

// Frames as a guest that owns its kernel can make them, byte by byte.

var (
	guestIP  = guestnet.GuestAddr()
	hostIP   = guestnet.HostAddr()
	guest6   = netip.MustParseAddr("2001:db8:1::15")
	internet = netip.MustParseAddr("192.0.2.1")
	inet6    = netip.MustParseAddr("2001:db8::1")
	metadata = netip.MustParseAddr("169.254.169.254")
)

func mac(s string) net.HardwareAddr {
	m, err := net.ParseMAC(s)
	if err != nil {
		panic(err) // a constant of these tests
	}
	return m
}

func ether(dst, src string, kind uint16, payload []byte) []byte {
	f := append(append([]byte{}, mac(dst)...), mac(src)...)
	return append(binary.BigEndian.AppendUint16(f, kind), payload...)
}

// toHost is a frame with the right addresses on it.
func toHost(kind uint16, payload []byte) []byte {
	return ether(guestnet.HostMAC, guestnet.GuestMAC, kind, payload)
}

type ip4 struct {
	src, dst netip.Addr
	protocol byte
	fragment uint16 // flags and offset, as on the wire
	options  []byte // a multiple of 4
	id       uint16
}

func (h ip4) with(payload []byte) []byte {
	b := make([]byte, 20, 20+len(h.options)+len(payload))
	b[0] = 0x40 | byte(5+len(h.options)/4)
	binary.BigEndian.PutUint16(b[2:], uint16(20+len(h.options)+len(payload)))
	binary.BigEndian.PutUint16(b[4:], h.id)
	binary.BigEndian.PutUint16(b[6:], h.fragment)
	b[8], b[9] = 64, h.protocol
	copy(b[12:], h.src.AsSlice())
	copy(b[16:], h.dst.AsSlice())
	b = append(b, h.options...)
	binary.BigEndian.PutUint16(b[10:], checksum(b))
	return append(b, payload...)
}

func ip6(src, dst netip.Addr, protocol byte, payload []byte) []byte {
	b := make([]byte, 40, 40+len(payload))
	b[0] = 0x60
	binary.BigEndian.PutUint16(b[4:], uint16(len(payload)))
	b[6], b[7] = protocol, 255
	copy(b[8:], src.AsSlice())
	copy(b[24:], dst.AsSlice())
	return append(b, payload...)
}

// sum adds the pseudo header and puts the transport checksum at offset at.
func sum(src, dst netip.Addr, protocol byte, at int, segment []byte) []byte {
	pseudo := append(src.AsSlice(), dst.AsSlice()...)
	pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(len(segment)))
	pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(protocol))
	binary.BigEndian.PutUint16(segment[at:], checksum(append(pseudo, segment...)))
	return segment
}

func tcp(src, dst netip.Addr, sport, dport uint16, flags byte) []byte {
	b := make([]byte, 20)
	binary.BigEndian.PutUint16(b, sport)
	binary.BigEndian.PutUint16(b[2:], dport)
	binary.BigEndian.PutUint32(b[4:], 1000)
	b[12], b[13] = 5<<4, flags
	binary.BigEndian.PutUint16(b[14:], 65000)
	return sum(src, dst, unix.IPPROTO_TCP, 16, b)
}

func udp(src, dst netip.Addr, sport, dport uint16, payload []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, sport)
	b = binary.BigEndian.AppendUint16(b, dport)
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(payload)))
	b = append(b, 0, 0)
	return sum(src, dst, unix.IPPROTO_UDP, 6, append(b, payload...))
}

func echoRequest(kind byte) []byte {
	b := []byte{kind, 0, 0, 0, 0x12, 0x34, 0, 1, 'p', 'i', 'n', 'g'}
	if kind == icmpEcho {
		binary.BigEndian.PutUint16(b[2:], checksum(b))
	}
	return b
}

const (
	icmpEcho, icmpEchoReply         = 8, 0
	icmp6Echo                       = 128
	tcpFIN, tcpSYN, tcpRSTBit       = 1, 2, 4
	tcpACK                          = 16
	etherARP, etherIPv4, etherIPv6  = unix.ETH_P_ARP, unix.ETH_P_IP, unix.ETH_P_IPV6
	broadcastMAC                    = "ff:ff:ff:ff:ff:ff"
	strangeMAC                      = "02:00:00:00:00:99"
	protoTCP, protoUDP, protoICMPv6 = unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_ICMPV6
)

func arpRequest(senderMAC string, sender, target netip.Addr) []byte {
	b := []byte{0, 1, 8, 0, 6, 4, 0, 1}
	b = append(append(b, mac(senderMAC)...), sender.AsSlice()...)
	b = append(append(b, make([]byte, 6)...), target.AsSlice()...)
	return b
}

func neighbourSolicitation(target netip.Addr) []byte {
	b := append([]byte{135, 0, 0, 0, 0, 0, 0, 0}, target.AsSlice()...)
	b = append(append(b, 1, 1), mac(guestnet.GuestMAC)...)
	return sum(guest6, target, protoICMPv6, 2, b)
}

func checksum(b []byte) uint16 {
	var s uint32
	for i := 0; i+1 < len(b); i += 2 {
		s += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		s += uint32(b[len(b)-1]) << 8
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return ^uint16(s)
}

// packet is what a test wants to know of a frame that came back.
type packet struct {
	kind     uint16
	src, dst netip.Addr
	protocol byte
	payload  []byte // after the IP header
	raw      []byte
}

func parse(frame []byte) packet {
	p := packet{raw: frame}
	if len(frame) < 14 {
		return p
	}
	p.kind = binary.BigEndian.Uint16(frame[12:])
	b := frame[14:]
	switch {
	case p.kind == etherIPv4 && len(b) >= 20 && len(b) >= int(b[0]&15)*4:
		p.src, _ = netip.AddrFromSlice(b[12:16])
		p.dst, _ = netip.AddrFromSlice(b[16:20])
		p.protocol, p.payload = b[9], b[int(b[0]&15)*4:]
	case p.kind == etherIPv6 && len(b) >= 40:
		p.src, _ = netip.AddrFromSlice(b[8:24])
		p.dst, _ = netip.AddrFromSlice(b[24:40])
		p.protocol, p.payload = b[6], b[40:]
	}
	return p
}

// isReset reports a TCP reset from addr:port.
func (p packet) isReset(addr netip.Addr, port uint16) bool {
	return p.src == addr && p.protocol == protoTCP && len(p.payload) >= 20 &&
		binary.BigEndian.Uint16(p.payload) == port && p.payload[13]&tcpRSTBit != 0
}

func (p packet) isICMP(src netip.Addr, kind, code byte) bool {
	return p.src == src && p.protocol == unix.IPPROTO_ICMP && len(p.payload) >= 2 && p.payload[0] == kind && p.payload[1] == code
}

func TestChecksumOfKnownHeader(t *testing.T) {
	t.Parallel()
	// The header of RFC 1071's usual example: its checksum field must come out as b861.
	h := []byte{0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7}
	if got := checksum(h); got != 0xb861 {
		t.Errorf("checksum = %#x, want 0xb861", got)
	}
}
