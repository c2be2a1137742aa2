package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/space-sandbox/space/test/redteam/finding"
	"golang.org/x/sys/unix"
)

// Ways out by ordinary sockets, as any program in the guest has them.

const (
	answerLimit = 2 * time.Second
	inParallel  = 24
)

// outside is every address that is not the guest's, with the ports worth trying.
func (p *prober) outside() []netip.AddrPort {
	var list []netip.AddrPort
	add := func(addrs []netip.Addr, ports ...uint16) {
		for _, a := range addrs {
			for _, port := range ports {
				list = append(list, netip.AddrPortFrom(a, port))
			}
		}
	}
	hosts := append([]netip.Addr{p.plan.HostAddr}, p.plan.Hosts...)
	add(p.plan.Internet, 80, 443)
	add(p.plan.Metadata, 80)
	add(hosts, p.plan.Open...)
	add(hosts, p.plan.Closed...)
	add(hosts, p.plan.AgentPort) // of other sandboxes, should anybody route it
	return list
}

// some is one port on one address of each kind.
func (p *prober) some() []netip.AddrPort {
	list := []netip.AddrPort{netip.AddrPortFrom(p.plan.HostAddr, p.plan.Open[0])}
	for _, addrs := range [][]netip.Addr{p.plan.Internet, p.plan.Metadata} {
		list = append(list, netip.AddrPortFrom(addrs[0], 80))
	}
	for _, a := range p.plan.Hosts {
		list = append(list, netip.AddrPortFrom(a, p.plan.Open[0]))
	}
	return list
}

// each runs try for all targets, some at a time.
func each(targets []netip.AddrPort, try func(netip.AddrPort)) {
	slots := make(chan struct{}, inParallel)
	var wg sync.WaitGroup
	for _, target := range targets {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			try(target)
		})
	}
	wg.Wait()
}

func (p *prober) connects() {
	each(p.outside(), func(to netip.AddrPort) { p.connect("tcp_connect", "tcp4", nil, to) })
}

// connect tries one TCP connection and reads what the other side says first.
func (p *prober) connect(technique, network string, from net.Addr, to netip.AddrPort) {
	seq := p.next()
	ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	d := net.Dialer{LocalAddr: from}
	c, err := d.DialContext(ctx, network, to.String())
	if err != nil {
		p.report(seq, technique, to.String(), outcomeOf(err), err.Error())
		return
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(answerLimit))
	fmt.Fprintf(c, "GET / HTTP/1.0\r\n\r\n%s", p.plan.Mark(seq))
	said := make([]byte, 64)
	n, _ := io.ReadAtLeast(c, said, 1)
	p.report(seq, technique, to.String(), finding.Answered, fmt.Sprintf("connected; it said %q", said[:n]))
}

// outcomeOf tells a refusal from silence. What the guest's own kernel refuses was never attempted.
func outcomeOf(err error) finding.Outcome {
	switch {
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ECONNRESET):
		return finding.Refused
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, unix.ETIMEDOUT), isTimeout(err):
		return finding.Silent
	default:
		return finding.Failed
	}
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}

func (p *prober) datagrams() {
	each(p.outside(), func(to netip.AddrPort) { p.datagram("udp_datagram", "udp4", nil, to, nil) })
}

// datagram sends the attempt's mark and then filler, twice, and waits for anything in return.
func (p *prober) datagram(technique, network string, from *net.UDPAddr, to netip.AddrPort, filler []byte) {
	seq := p.next()
	c, err := net.DialUDP(network, from, net.UDPAddrFromAddrPort(to))
	if err != nil {
		p.report(seq, technique, to.String(), outcomeOf(err), err.Error())
		return
	}
	defer c.Close()
	buf := make([]byte, 70_000)
	outcome, evidence := finding.Silent, ""
	for range 2 {
		if _, err := c.Write(append([]byte(p.plan.Mark(seq)), filler...)); err != nil {
			outcome, evidence = outcomeOf(err), err.Error()
			continue
		}
		c.SetReadDeadline(time.Now().Add(answerLimit / 3))
		n, err := c.Read(buf)
		if err == nil {
			p.report(seq, technique, to.String(), finding.Answered, fmt.Sprintf("%d bytes came back", n))
			return
		}
		outcome, evidence = outcomeOf(err), err.Error()
	}
	p.report(seq, technique, to.String(), outcome, evidence)
}

// names asks for a name whose labels would carry a secret to whoever serves the zone.
func (p *prober) names() {
	var servers []netip.AddrPort
	for _, a := range append(append([]netip.Addr{p.plan.HostAddr}, p.plan.Internet...), p.plan.Metadata...) {
		servers = append(servers, netip.AddrPortFrom(a, 53))
	}
	each(servers, func(to netip.AddrPort) { p.connect("dns_tcp", "tcp4", nil, to) })
	each(servers, func(to netip.AddrPort) {
		query := "\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x06secret\x07example\x00\x00\x01\x00\x01"
		p.datagram("dns_udp", "udp4", nil, to, []byte(query))
	})
}

// bigDatagrams are cut into fragments by the guest's own kernel.
func (p *prober) bigDatagrams() {
	each(p.some(), func(to netip.AddrPort) { p.datagram("udp_fragmented", "udp4", nil, to, make([]byte, 4000)) })
}

// shouts go to everybody on the link.
func (p *prober) shouts() {
	for _, to := range []string{"255.255.255.255:67", "224.0.0.251:5353", "239.255.255.250:1900", "224.0.0.1:9"} {
		seq := p.next()
		err := p.shout(netip.MustParseAddrPort(to), seq)
		if err != nil {
			p.report(seq, "broadcast_multicast", to, finding.Failed, err.Error())
			continue
		}
		p.report(seq, "broadcast_multicast", to, finding.Sent, "")
	}
}

func (p *prober) shout(to netip.AddrPort, seq int) error {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) {
			failed = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1),
				unix.SetsockoptString(int(fd), unix.SOL_SOCKET, unix.SO_BINDTODEVICE, p.plan.Interface))
		})
		return errors.Join(err, failed)
	}}
	c, err := lc.ListenPacket(context.Background(), "udp4", ":0")
	if err != nil {
		return err
	}
	defer c.Close()
	for range 2 {
		if _, err := c.WriteTo([]byte(p.plan.Mark(seq)), net.UDPAddrFromAddrPort(to)); err != nil {
			return err
		}
		time.Sleep(pace)
	}
	return nil
}

// echoes ping through a raw socket.
func (p *prober) echoes() {
	each(p.some(), func(to netip.AddrPort) {
		seq := p.next()
		c, err := net.Dial("ip4:icmp", to.Addr().String())
		if err != nil {
			p.report(seq, "icmp_echo", to.Addr().String(), finding.Failed, err.Error())
			return
		}
		defer c.Close()
		p.echo(c, seq, "icmp_echo", to.Addr(), echoRequest(p.plan.Mark(seq)), 0)
	})
}

// echo sends a request and waits for the answer of the given type that carries the mark.
func (p *prober) echo(c net.Conn, seq int, technique string, to netip.Addr, request []byte, answer byte) {
	deadline := time.Now().Add(answerLimit / 2)
	c.SetReadDeadline(deadline)
	for range 2 {
		if _, err := c.Write(request); err != nil {
			p.report(seq, technique, to.String(), outcomeOf(err), err.Error())
			return
		}
	}
	buf := make([]byte, 2000)
	for {
		n, err := c.Read(buf)
		if err != nil {
			p.report(seq, technique, to.String(), outcomeOf(err), err.Error())
			return
		}
		if n > 8 && buf[0] == answer && strings.Contains(string(buf[:n]), p.plan.Mark(seq)) {
			p.report(seq, technique, to.String(), finding.Answered, "echo reply")
			return
		}
	}
}

// agentPort calls the guest's own agent from another process of the guest, as itself and as if it were the host.
func (p *prober) agentPort() {
	to := netip.AddrPortFrom(p.plan.GuestAddr, p.plan.AgentPort)
	p.callAgent("agent_port", nil, to)
	undo, err := p.addAddress("lo", netip.PrefixFrom(p.plan.HostAddr, 32))
	if err != nil {
		p.failed("agent_port_as_host", err)
		return
	}
	defer undo()
	p.callAgent("agent_port_as_host", &net.TCPAddr{IP: p.plan.HostAddr.AsSlice()}, to)
}

// callAgent counts as answered only when the agent says something: the guest's own kernel may accept a connection.
func (p *prober) callAgent(technique string, from net.Addr, to netip.AddrPort) {
	seq := p.next()
	d := net.Dialer{LocalAddr: from, Timeout: answerLimit}
	c, err := d.Dial("tcp4", to.String())
	if err != nil {
		p.report(seq, technique, to.String(), outcomeOf(err), err.Error())
		return
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(answerLimit))
	io.WriteString(c, "POST /space.agent.v1.AgentService/Hello HTTP/1.1\r\nHost: agent\r\n"+
		"Content-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
	said := make([]byte, 64)
	n, err := io.ReadAtLeast(c, said, 1)
	if n == 0 {
		p.report(seq, technique, to.String(), finding.Refused, fmt.Sprintf("it closed without a word: %v", err))
		return
	}
	p.report(seq, technique, to.String(), finding.Answered, fmt.Sprintf("%q", said[:n]))
}
