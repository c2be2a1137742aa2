package main

import (
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/space-sandbox/space/internal/sandboxnet/netlab/frame"
	"github.com/space-sandbox/space/test/redteam/finding"
)

// Ways out after the guest's root has changed its own network. Each change is taken back.

// onlinkRoute claims that the whole world is on the link, behind the host's hardware address.
func (p *prober) onlinkRoute() {
	const technique = "onlink_route"
	targets := p.some()
	for _, to := range targets {
		undo, err := p.addNeighbour(to.Addr(), p.plan.HostMAC)
		if err != nil {
			p.failed(technique, err)
			return
		}
		defer undo()
		if undo, err = p.addRoute(netip.PrefixFrom(to.Addr(), to.Addr().BitLen())); err != nil && to.Addr() != p.plan.HostAddr {
			p.failed(technique, err)
			return
		} else if err == nil {
			defer undo()
		}
	}
	each(targets, func(to netip.AddrPort) { p.connect(technique, "tcp4", nil, to) })
	each(targets, func(to netip.AddrPort) { p.datagram(technique, "udp4", nil, to, nil) })
}

// otherAddress takes an address that is not the guest's and uses it.
func (p *prober) otherAddress() {
	const technique = "other_address"
	other := strangers()[0]
	undo, err := p.addAddress(p.plan.Interface, netip.PrefixFrom(other, 32))
	if err != nil {
		p.failed(technique, err)
		return
	}
	defer undo()
	each(p.some(), func(to netip.AddrPort) { p.connect(technique, "tcp4", &net.TCPAddr{IP: other.AsSlice()}, to) })
	each(p.some(), func(to netip.AddrPort) { p.datagram(technique, "udp4", &net.UDPAddr{IP: other.AsSlice()}, to, nil) })
}

// otherMAC changes the interface's own hardware address for a moment. What is sent meanwhile is all marked. The kernel
// forgets its neighbours with each change.
func (p *prober) otherMAC() {
	const technique = "other_mac"
	change := func(mac string) error {
		if err := p.setMAC(mac); err != nil {
			return err
		}
		_, err := p.addNeighbour(p.plan.HostAddr, p.plan.HostMAC)
		return err
	}
	defer func() {
		if err := change(p.plan.GuestMAC); err != nil {
			p.failed(technique, err)
		}
	}()
	if err := change(strangeMAC); err != nil {
		p.failed(technique, err)
		return
	}
	for _, to := range p.some() {
		seq := p.next()
		c, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(to))
		if err != nil {
			p.report(seq, technique, to.String(), finding.Failed, err.Error())
			continue
		}
		for range 2 {
			c.Write([]byte(p.plan.Mark(seq))) // a refusal of the one before is no fault
			time.Sleep(pace)
		}
		c.Close()
		p.report(seq, technique, to.String(), finding.Sent, "")
	}
}

// ipv6Sockets switches IPv6 on and uses it like any program.
func (p *prober) ipv6Sockets() {
	const technique = "ipv6_sockets"
	if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
		p.failed(technique, err)
		return
	}
	for _, s := range []string{"all", "default", p.plan.Interface} {
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+s+"/disable_ipv6", []byte("0"), 0); err != nil {
			p.failed(technique, err)
			return
		}
	}
	undo, err := p.addAddress(p.plan.Interface, netip.MustParsePrefix("2001:db8:1::15/64"))
	if err != nil {
		p.failed(technique, err)
		return
	}
	defer undo()
	var targets []netip.AddrPort
	for _, a := range append(append([]netip.Addr{}, p.plan.Internet6...), p.plan.Hosts6...) {
		undoNeighbour, err := p.addNeighbour(a, p.plan.HostMAC)
		if err != nil {
			p.failed(technique, err)
			return
		}
		defer undoNeighbour()
		undoRoute, err := p.addRoute(netip.PrefixFrom(a, 128))
		if err != nil {
			p.failed(technique, err)
			return
		}
		defer undoRoute()
		targets = append(targets, netip.AddrPortFrom(a, p.plan.Open[0]))
	}
	each(targets, func(to netip.AddrPort) { p.connect(technique+"_tcp", "tcp6", nil, to) })
	each(targets, func(to netip.AddrPort) { p.datagram(technique+"_udp", "udp6", nil, to, nil) })
	each(targets, func(to netip.AddrPort) { p.ping6(technique+"_echo", to.Addr()) })
}

func (p *prober) ping6(technique string, to netip.Addr) {
	seq := p.next()
	c, err := net.Dial("ip6:ipv6-icmp", to.String())
	if err != nil {
		p.report(seq, technique, to.String(), outcomeOf(err), err.Error())
		return
	}
	defer c.Close()
	const echoReply6 = 129
	p.echo(c, seq, technique, to, frame.Echo(frame.EchoRequest6, p.plan.Mark(seq)), echoReply6)
}
