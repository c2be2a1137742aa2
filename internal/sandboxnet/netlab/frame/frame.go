// Package frame makes and reads Ethernet frames byte by byte, as a guest that owns its kernel can. It is for tests and
// for the red team's probe; nothing of the product parses what a guest sends.
package frame

import (
	"encoding/binary"
	"net"
	"net/netip"
)

// Numbers on the wire.
const (
	TypeIPv4, TypeARP, TypeIPv6, TypeVLAN = 0x0800, 0x0806, 0x86dd, 0x8100

	ProtoICMP, ProtoTCP, ProtoUDP, ProtoICMPv6 = 1, 6, 17, 58

	FIN, SYN, RST, ACK = 1, 2, 4, 16

	EchoRequest, EchoRequest6 = 8, 128

	BroadcastMAC = "ff:ff:ff:ff:ff:ff"
)

// MAC parses a constant.
func MAC(s string) net.HardwareAddr {
	m, err := net.ParseMAC(s)
	if err != nil {
		panic(err) // a constant of the caller
	}
	return m
}

// Ethernet makes a frame.
func Ethernet(dst, src string, kind uint16, payload []byte) []byte {
	f := append(append([]byte{}, MAC(dst)...), MAC(src)...)
	return append(binary.BigEndian.AppendUint16(f, kind), payload...)
}

// IPv4 is a header.
type IPv4 struct {
	Src, Dst netip.Addr
	Protocol byte
	Fragment uint16 // flags and offset, as on the wire
	Options  []byte // a multiple of 4
	ID       uint16
}

// With makes the packet.
func (h IPv4) With(payload []byte) []byte {
	b := make([]byte, 20, 20+len(h.Options)+len(payload))
	b[0] = 0x40 | byte(5+len(h.Options)/4)
	binary.BigEndian.PutUint16(b[2:], uint16(20+len(h.Options)+len(payload)))
	binary.BigEndian.PutUint16(b[4:], h.ID)
	binary.BigEndian.PutUint16(b[6:], h.Fragment)
	b[8], b[9] = 64, h.Protocol
	copy(b[12:], h.Src.AsSlice())
	copy(b[16:], h.Dst.AsSlice())
	b = append(b, h.Options...)
	binary.BigEndian.PutUint16(b[10:], Checksum(b))
	return append(b, payload...)
}

// IPv6 makes a packet.
func IPv6(src, dst netip.Addr, protocol byte, payload []byte) []byte {
	b := make([]byte, 40, 40+len(payload))
	b[0] = 0x60
	binary.BigEndian.PutUint16(b[4:], uint16(len(payload)))
	b[6], b[7] = protocol, 255
	copy(b[8:], src.AsSlice())
	copy(b[24:], dst.AsSlice())
	return append(b, payload...)
}

// Sum adds the pseudo header and puts the transport checksum at offset at.
func Sum(src, dst netip.Addr, protocol byte, at int, segment []byte) []byte {
	pseudo := append(src.AsSlice(), dst.AsSlice()...)
	pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(len(segment)))
	pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(protocol))
	binary.BigEndian.PutUint16(segment[at:], Checksum(append(pseudo, segment...)))
	return segment
}

// TCP makes a segment without data, with its checksum.
func TCP(src, dst netip.Addr, sport, dport uint16, flags byte) []byte {
	b := make([]byte, 20)
	binary.BigEndian.PutUint16(b, sport)
	binary.BigEndian.PutUint16(b[2:], dport)
	binary.BigEndian.PutUint32(b[4:], 1000)
	b[12], b[13] = 5<<4, flags
	binary.BigEndian.PutUint16(b[14:], 65000)
	return Sum(src, dst, ProtoTCP, 16, b)
}

// UDP makes a datagram with its checksum.
func UDP(src, dst netip.Addr, sport, dport uint16, payload []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, sport)
	b = binary.BigEndian.AppendUint16(b, dport)
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(payload)))
	b = append(b, 0, 0)
	return Sum(src, dst, ProtoUDP, 6, append(b, payload...))
}

// Echo makes an ICMP echo request; the checksum of an ICMPv6 one needs Sum.
func Echo(kind byte, payload string) []byte {
	b := append([]byte{kind, 0, 0, 0, 0x12, 0x34, 0, 1}, payload...)
	if kind == EchoRequest {
		binary.BigEndian.PutUint16(b[2:], Checksum(b))
	}
	return b
}

// ARP makes a request (operation 1) or an answer (2).
func ARP(operation byte, senderMAC string, sender, target netip.Addr) []byte {
	b := []byte{0, 1, 8, 0, 6, 4, 0, operation}
	b = append(append(b, MAC(senderMAC)...), sender.AsSlice()...)
	b = append(append(b, make([]byte, 6)...), target.AsSlice()...)
	return b
}

// NeighbourSolicitation makes the ICMPv6 message with its checksum.
func NeighbourSolicitation(mac string, src, target netip.Addr) []byte {
	b := append([]byte{135, 0, 0, 0, 0, 0, 0, 0}, target.AsSlice()...)
	b = append(append(b, 1, 1), MAC(mac)...)
	return Sum(src, target, ProtoICMPv6, 2, b)
}

// Checksum is that of RFC 1071.
func Checksum(b []byte) uint16 {
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

// Packet is what one wants to know of a frame that came back.
type Packet struct {
	Type     uint16
	Src, Dst netip.Addr
	Protocol byte
	Payload  []byte // after the IP header
	Raw      []byte
}

// Parse reads a frame; what is cut off or unknown stays empty.
func Parse(frame []byte) Packet {
	p := Packet{Raw: frame}
	if len(frame) < 14 {
		return p
	}
	p.Type = binary.BigEndian.Uint16(frame[12:])
	b := frame[14:]
	switch {
	case p.Type == TypeIPv4 && len(b) >= 20 && len(b) >= int(b[0]&15)*4:
		p.Src, _ = netip.AddrFromSlice(b[12:16])
		p.Dst, _ = netip.AddrFromSlice(b[16:20])
		p.Protocol, p.Payload = b[9], b[int(b[0]&15)*4:]
	case p.Type == TypeIPv6 && len(b) >= 40:
		p.Src, _ = netip.AddrFromSlice(b[8:24])
		p.Dst, _ = netip.AddrFromSlice(b[24:40])
		p.Protocol, p.Payload = b[6], b[40:]
	}
	return p
}

// IsReset reports a TCP reset from addr:port.
func (p Packet) IsReset(addr netip.Addr, port uint16) bool {
	return p.Src == addr && p.Protocol == ProtoTCP && len(p.Payload) >= 20 &&
		binary.BigEndian.Uint16(p.Payload) == port && p.Payload[13]&RST != 0
}

// IsICMP reports an ICMP message of that kind.
func (p Packet) IsICMP(src netip.Addr, kind, code byte) bool {
	return p.Src == src && p.Protocol == ProtoICMP && len(p.Payload) >= 2 && p.Payload[0] == kind && p.Payload[1] == code
}
