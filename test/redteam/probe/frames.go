package main

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/space-sandbox/space/internal/sandboxnet/netlab/frame"
)

// Ways out by frames of our own making: whatever the guest's kernel would not send. The mark in each tells the other
// side which of them has arrived.

// strangeMAC and strangers are nobody's.
const strangeMAC = "02:00:00:00:00:99"

func strangers() []netip.Addr {
	return []netip.Addr{netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("127.0.0.1"),
		netip.MustParseAddr("0.0.0.0"), netip.MustParseAddr("255.255.255.255"), netip.MustParseAddr("169.254.0.17")}
}

func echoRequest(payload string) []byte { return frame.Echo(frame.EchoRequest, payload) }

// toHost is a frame with the right hardware addresses on it.
func (p *prober) toHost(kind uint16, payload []byte) []byte {
	return frame.Ethernet(p.plan.HostMAC, p.plan.GuestMAC, kind, payload)
}

// ip is a packet from the guest's true address.
func (p *prober) ip(dst netip.Addr, protocol byte, payload []byte) []byte {
	return frame.IPv4{Src: p.plan.GuestAddr, Dst: dst, Protocol: protocol}.With(payload)
}

// udp is a packet with a datagram from the guest's true address to a port where something may listen.
func (p *prober) udp(to netip.AddrPort, mark []byte) []byte {
	return p.ip(to.Addr(), frame.ProtoUDP, frame.UDP(p.plan.GuestAddr, to.Addr(), 40001, to.Port(), mark))
}

// protocols other than TCP, UDP and ICMP: IGMP, IPv6 in IPv4, GRE, AH, SCTP, and one for experiments.
func (p *prober) protocols() {
	for _, number := range []byte{2, 41, 47, 51, 132, 253} {
		for _, to := range p.some() {
			p.shoot("raw_protocol", fmt.Sprintf("%s protocol %d", to.Addr(), number), func(mark []byte) [][]byte {
				return [][]byte{p.toHost(frame.TypeIPv4, p.ip(to.Addr(), number, mark))}
			})
		}
	}
}

// options ask routers on the way to do more: loose source route by way of the host, record route, router alert.
func (p *prober) options() {
	via := p.plan.HostAddr.As4()
	for name, options := range map[string][]byte{
		"loose source route": append([]byte{131, 7, 4}, append(via[:], 0)...),
		"record route":       {7, 7, 4, 0, 0, 0, 0, 0},
		"router alert":       {148, 4, 0, 0},
	} {
		for _, to := range p.some() {
			p.shoot("ip_options", to.String()+" "+name, func(mark []byte) [][]byte {
				h := frame.IPv4{Src: p.plan.GuestAddr, Dst: to.Addr(), Protocol: frame.ProtoUDP, Options: options}
				return [][]byte{p.toHost(frame.TypeIPv4, h.With(frame.UDP(p.plan.GuestAddr, to.Addr(), 40001, to.Port(), mark)))}
			})
		}
	}
}

// fragments hide what a packet is: in order, the last one first, overlapping, and with a header cut in two.
func (p *prober) fragments() {
	const more = 0x2000
	for _, to := range p.some() {
		cut := func(whole []byte, protocol byte, parts ...[3]int) [][]byte { // from, to, more
			var frames [][]byte
			for _, part := range parts {
				h := frame.IPv4{Src: p.plan.GuestAddr, Dst: to.Addr(), Protocol: protocol, ID: uint16(p.seq),
					Fragment: uint16(part[0]/8) | uint16(part[2])}
				frames = append(frames, p.toHost(frame.TypeIPv4, h.With(whole[part[0]:part[1]])))
			}
			return frames
		}
		datagram := func(mark []byte) []byte {
			return frame.UDP(p.plan.GuestAddr, to.Addr(), 40001, to.Port(), append(mark, make([]byte, 200)...))
		}
		p.shoot("fragments", to.String()+" in order", func(mark []byte) [][]byte {
			w := datagram(mark)
			return cut(w, frame.ProtoUDP, [3]int{0, 160, more}, [3]int{160, len(w), 0})
		})
		p.shoot("fragments", to.String()+" last first", func(mark []byte) [][]byte {
			w := datagram(mark)
			return cut(w, frame.ProtoUDP, [3]int{160, len(w), 0}, [3]int{0, 160, more})
		})
		p.shoot("fragments", to.String()+" overlapping", func(mark []byte) [][]byte {
			w := datagram(mark)
			return cut(w, frame.ProtoUDP, [3]int{0, 160, more}, [3]int{80, len(w), 0})
		})
		p.shoot("fragments", to.String()+" tcp header in two", func(mark []byte) [][]byte {
			w := append(frame.TCP(p.plan.GuestAddr, to.Addr(), 40003, to.Port(), frame.SYN), mark...)
			return cut(w, frame.ProtoTCP, [3]int{0, 8, more}, [3]int{8, len(w), 0})
		})
	}
}

// arp asks, answers unasked, and lies. The mark is in the padding.
func (p *prober) arp() {
	marked := func(dst, src string, body []byte) func([]byte) [][]byte {
		return func(mark []byte) [][]byte {
			return [][]byte{frame.Ethernet(dst, src, frame.TypeARP, append(body, mark...))}
		}
	}
	guest, host := p.plan.GuestAddr, p.plan.HostAddr
	for _, target := range append([]netip.Addr{host, guest.Prev(), host.Next(), p.plan.Internet[0]}, p.plan.Hosts...) {
		p.shoot("arp_request", target.String(), marked(frame.BroadcastMAC, p.plan.GuestMAC, frame.ARP(1, p.plan.GuestMAC, guest, target)))
	}
	p.shoot("arp_spoof", "I am the host", marked(frame.BroadcastMAC, p.plan.GuestMAC, frame.ARP(2, p.plan.GuestMAC, host, host)))
	p.shoot("arp_spoof", "the guest has moved", marked(p.plan.HostMAC, strangeMAC, frame.ARP(2, strangeMAC, guest, host)))
	p.shoot("arp_spoof", "a stranger asks", marked(frame.BroadcastMAC, strangeMAC, frame.ARP(1, strangeMAC, strangers()[0], host)))
}

// hardwareAddresses are other ones than the link's two.
func (p *prober) hardwareAddresses() {
	for _, to := range p.some() {
		for _, m := range [][2]string{
			{p.plan.HostMAC, strangeMAC}, {p.plan.HostMAC, p.plan.HostMAC}, {p.plan.HostMAC, "00:00:00:00:00:00"},
			{frame.BroadcastMAC, p.plan.GuestMAC}, {"01:00:5e:00:00:01", p.plan.GuestMAC},
			{strangeMAC, p.plan.GuestMAC}, {p.plan.GuestMAC, p.plan.GuestMAC},
		} {
			p.shoot("mac_spoof", fmt.Sprintf("%s from %s to %s", to, m[1], m[0]), func(mark []byte) [][]byte {
				return [][]byte{frame.Ethernet(m[0], m[1], frame.TypeIPv4, p.udp(to, mark))}
			})
		}
	}
}

// sources are other addresses than the guest's: strangers', the host's, and the target's own.
func (p *prober) sources() {
	for _, to := range p.some() {
		for _, src := range append(strangers(), p.plan.HostAddr, p.plan.Internet[0], to.Addr()) {
			for _, sport := range []uint16{40001, p.plan.AgentPort} {
				p.shoot("ip_spoof", fmt.Sprintf("%s from %s:%d", to, src, sport), func(mark []byte) [][]byte {
					h := frame.IPv4{Src: src, Dst: to.Addr(), Protocol: frame.ProtoUDP}
					return [][]byte{p.toHost(frame.TypeIPv4, h.With(frame.UDP(src, to.Addr(), sport, to.Port(), mark)))}
				})
			}
		}
	}
}

// tags wrap packets in VLAN tags: for priority only, with a number, two of them, and the provider's kind.
func (p *prober) tags() {
	for _, to := range p.some() {
		for name, tag := range map[string][]byte{
			"priority": {0x81, 0, 0, 0}, "vlan 5": {0x81, 0, 0, 5}, "double": {0x81, 0, 0, 0, 0x81, 0, 0, 0},
			"provider": {0x88, 0xa8, 0, 0}, "provider vlan 5": {0x88, 0xa8, 0, 5},
		} {
			p.shoot("vlan_tag", to.String()+" "+name, func(mark []byte) [][]byte {
				inner := append(append(append([]byte{}, tag[2:]...), 8, 0), p.udp(to, mark)...)
				return [][]byte{p.toHost(binary.BigEndian.Uint16(tag), inner)}
			})
		}
	}
}

// etherTypes that bridges and hosts may act on: RARP, PPPoE, EAPOL, LLDP, MPLS, loopback test, spanning tree, unknown.
func (p *prober) etherTypes() {
	for _, kind := range []uint16{0x8035, 0x8863, 0x8864, 0x888e, 0x88cc, 0x8847, 0x9000, 0x0026, 0x1234} {
		for _, dst := range []string{p.plan.HostMAC, frame.BroadcastMAC, "01:80:c2:00:00:00"} {
			p.shoot("ethertype", fmt.Sprintf("%#04x to %s", kind, dst), func(mark []byte) [][]byte {
				return [][]byte{frame.Ethernet(dst, p.plan.GuestMAC, kind, mark)}
			})
		}
	}
}

// segments of TCP that no connection has: all kinds of flags, from an ordinary port and from the agent's, with data.
func (p *prober) segments() {
	const urgPshFin = 0x29
	for _, to := range p.some() {
		for _, sport := range []uint16{40004, p.plan.AgentPort} {
			for _, flags := range []byte{frame.SYN, frame.ACK, frame.FIN, frame.RST, frame.SYN | frame.ACK, urgPshFin, 0} {
				p.shoot("tcp_segment", fmt.Sprintf("%s from port %d flags %#02x", to, sport, flags), func(mark []byte) [][]byte {
					s := append(frame.TCP(p.plan.GuestAddr, to.Addr(), sport, to.Port(), flags), mark...)
					s[16], s[17] = 0, 0
					s = frame.Sum(p.plan.GuestAddr, to.Addr(), frame.ProtoTCP, 16, s)
					return [][]byte{p.toHost(frame.TypeIPv4, p.ip(to.Addr(), frame.ProtoTCP, s))}
				})
			}
		}
	}
}

// controlMessages are ICMP other than echo: unreachable, redirect, router advertisement and solicitation, timestamp.
func (p *prober) controlMessages() {
	for _, kind := range []byte{3, 5, 9, 10, 13, 17} {
		for _, to := range p.some() {
			p.shoot("icmp_message", fmt.Sprintf("%s type %d", to.Addr(), kind), func(mark []byte) [][]byte {
				b := append([]byte{kind, 0, 0, 0, 0, 0, 0, 0}, mark...)
				binary.BigEndian.PutUint16(b[2:], frame.Checksum(b))
				return [][]byte{p.toHost(frame.TypeIPv4, p.ip(to.Addr(), frame.ProtoICMP, b))}
			})
		}
	}
}

// neighbours are other sandboxes: all have the same addresses, so frames go to those, from addresses close by.
func (p *prober) neighbours() {
	guest := p.plan.GuestAddr
	for _, dstMAC := range []string{p.plan.HostMAC, p.plan.GuestMAC, frame.BroadcastMAC} {
		for _, src := range []netip.Addr{guest.Prev(), p.plan.HostAddr, p.plan.HostAddr.Next(), guest} {
			for _, port := range []uint16{p.plan.AgentPort, p.plan.Open[0]} {
				target := fmt.Sprintf("%s:%d from %s by %s", guest, port, src, dstMAC)
				p.shoot("other_sandbox", target, func(mark []byte) [][]byte {
					udp := frame.IPv4{Src: src, Dst: guest, Protocol: frame.ProtoUDP}.With(frame.UDP(src, guest, 40005, port, mark))
					syn := append(frame.TCP(src, guest, 40005, port, frame.SYN), mark...)
					syn[16], syn[17] = 0, 0
					syn = frame.Sum(src, guest, frame.ProtoTCP, 16, syn)
					tcp := frame.IPv4{Src: src, Dst: guest, Protocol: frame.ProtoTCP}.With(syn)
					return [][]byte{frame.Ethernet(dstMAC, p.plan.GuestMAC, frame.TypeIPv4, udp),
						frame.Ethernet(dstMAC, p.plan.GuestMAC, frame.TypeIPv4, tcp)}
				})
			}
		}
	}
}

// loopbackTargets are what a host that routes loopback addresses would hand to its own services.
func (p *prober) loopbackTargets() {
	for _, port := range p.plan.Open {
		to := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)
		p.shoot("host_loopback", to.String(), func(mark []byte) [][]byte {
			return [][]byte{p.toHost(frame.TypeIPv4, p.udp(to, mark))}
		})
	}
}

// ipv6Frames bypass whatever the guest's kernel has switched off.
func (p *prober) ipv6Frames() {
	own := netip.MustParseAddr("fe80::15")
	all := netip.MustParseAddr("ff02::1")
	routers := netip.MustParseAddr("ff02::2")
	send := func(technique string, dstMAC string, dst netip.Addr, protocol byte, body func(mark []byte) []byte) {
		p.shoot(technique, dst.String(), func(mark []byte) [][]byte {
			return [][]byte{frame.Ethernet(dstMAC, p.plan.GuestMAC, frame.TypeIPv6, frame.IPv6(own, dst, protocol, body(mark)))}
		})
	}
	icmp := func(dst netip.Addr, message []byte) []byte {
		return frame.Sum(own, dst, frame.ProtoICMPv6, 2, message)
	}
	for _, dst := range append(append([]netip.Addr{all}, p.plan.Internet6...), p.plan.Hosts6...) {
		send("ipv6_echo", p.plan.HostMAC, dst, frame.ProtoICMPv6, func(mark []byte) []byte {
			return icmp(dst, frame.Echo(frame.EchoRequest6, string(mark)))
		})
		send("ipv6_udp", p.plan.HostMAC, dst, frame.ProtoUDP, func(mark []byte) []byte {
			return frame.UDP(own, dst, 40006, p.plan.Open[0], mark)
		})
		send("ipv6_neighbour_solicitation", "33:33:ff:00:00:01", dst, frame.ProtoICMPv6, func(mark []byte) []byte {
			body := append([]byte{135, 0, 0, 0, 0, 0, 0, 0}, dst.AsSlice()...)
			return icmp(dst, append(append(body, 1, 1), append(frame.MAC(p.plan.GuestMAC), mark...)...))
		})
	}
	send("ipv6_router_solicitation", "33:33:00:00:00:02", routers, frame.ProtoICMPv6, func(mark []byte) []byte {
		return icmp(routers, append([]byte{133, 0, 0, 0, 0, 0, 0, 0}, mark...))
	})
	send("ipv6_router_advertisement", "33:33:00:00:00:01", all, frame.ProtoICMPv6, func(mark []byte) []byte {
		return icmp(all, append([]byte{134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0}, mark...))
	})
}
