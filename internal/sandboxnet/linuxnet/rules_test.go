package linuxnet_test

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/space-sandbox/space/internal/guestnet"
	"github.com/space-sandbox/space/internal/sandboxnet/netlab"
	"github.com/space-sandbox/space/internal/sandboxnet/netlab/frame"
)

const answerLimit = 5 * time.Second

// attempt is one way out: frames, the answer that says it worked, and what a box makes of it instead.
type attempt struct {
	name   string
	frames [][]byte
	// works recognises the answer of a host that lets it through.
	works func(frame.Packet) bool
	// counter is the rule that ends it in a box.
	counter string
	// refusal recognises the box's own answer; nil where there must be none.
	refusal func(frame.Packet) bool
}

// from, to and protocol of an answer.
func comesFrom(src netip.Addr, protocol byte) func(frame.Packet) bool {
	return func(p frame.Packet) bool { return p.Src == src && p.Protocol == protocol }
}

// datagramFrom recognises an answer by its port: the service answers from the address that its route suggests.
func datagramFrom(port uint16) func(frame.Packet) bool {
	return func(p frame.Packet) bool {
		return p.Protocol == frame.ProtoUDP && len(p.Payload) >= 8 && binary.BigEndian.Uint16(p.Payload) == port
	}
}

func synAck(src netip.Addr) func(frame.Packet) bool {
	return func(p frame.Packet) bool {
		return p.Src == src && p.Protocol == frame.ProtoTCP && len(p.Payload) >= 20 && p.Payload[13]&(frame.SYN|frame.ACK) == frame.SYN|frame.ACK
	}
}

// attempts are all the ways out that these tests know.
func attempts() []attempt {
	var list []attempt
	for _, dst := range []netip.Addr{internet(), metadata(), hostAddr()} {
		list = append(list, tcpAttempts(dst)...)
		list = append(list, udpAttempts(dst)...)
		list = append(list, otherIPAttempts(dst)...)
		list = append(list, spoofedAttempts(dst)...)
	}
	list = append(list, linkAttempts()...)
	return append(list, ipv6Attempts()...)
}

func tcpAttempts(dst netip.Addr) []attempt {
	var list []attempt
	for _, port := range []uint16{80, 53, guestnet.AgentPort} {
		list = append(list, attempt{
			name:    "tcp syn " + netip.AddrPortFrom(dst, port).String(),
			frames:  [][]byte{segment(dst, 40000, port, frame.SYN)},
			works:   synAck(dst),
			counter: "tcp_reset",
			refusal: func(p frame.Packet) bool { return p.IsReset(dst, port) },
		})
	}
	a := attempt{
		name:    "tcp syn from the agent's port to " + dst.String(),
		frames:  [][]byte{segment(dst, guestnet.AgentPort, 80, frame.SYN)},
		works:   synAck(dst),
		counter: "tcp_reset",
		refusal: func(p frame.Packet) bool { return p.IsReset(dst, 80) },
	}
	if dst == hostAddr() {
		a.counter = "unknown_flow" // reaches connection tracking and ends there
	}
	return append(list, a)
}

func udpAttempts(dst netip.Addr) []attempt {
	query := []byte("\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x06secret\x07example\x00\x00\x01\x00\x01")
	var list []attempt
	for _, port := range []uint16{53, 80} {
		list = append(list, attempt{
			name:    "udp " + netip.AddrPortFrom(dst, port).String(),
			frames:  [][]byte{toHost(frame.TypeIPv4, ip(dst, frame.ProtoUDP, frame.UDP(guestAddr(), dst, 40001, port, query)))},
			works:   datagramFrom(port),
			counter: "udp_refused",
			refusal: func(p frame.Packet) bool { return p.IsICMP(dst, 3, 3) },
		})
	}
	return list
}

func otherIPAttempts(dst netip.Addr) []attempt {
	whole := frame.UDP(guestAddr(), dst, 40002, 80, make([]byte, 2000))
	fragments := [][]byte{
		toHost(frame.TypeIPv4, frame.IPv4{Src: guestAddr(), Dst: dst, Protocol: frame.ProtoUDP, ID: 7, Fragment: 0x2000}.With(whole[:1200])),
		toHost(frame.TypeIPv4, frame.IPv4{Src: guestAddr(), Dst: dst, Protocol: frame.ProtoUDP, ID: 7, Fragment: 1200 / 8}.With(whole[1200:])),
	}
	recordRoute := []byte{7, 7, 4, 0, 0, 0, 0, 0}
	return []attempt{
		{name: "icmp echo " + dst.String(), counter: "other_protocol", works: comesFrom(dst, frame.ProtoICMP),
			frames: [][]byte{toHost(frame.TypeIPv4, ip(dst, frame.ProtoICMP, frame.Echo(frame.EchoRequest, "ping")))}},
		{name: "raw protocol 253 " + dst.String(), counter: "other_protocol", works: comesFrom(dst, frame.ProtoICMP),
			frames: [][]byte{toHost(frame.TypeIPv4, ip(dst, 253, []byte("payload")))}},
		{name: "ipv6 in ipv4 " + dst.String(), counter: "other_protocol", works: comesFrom(dst, frame.ProtoICMP),
			frames: [][]byte{toHost(frame.TypeIPv4, ip(dst, 41, frame.IPv6(guest6(), inet6(), frame.ProtoUDP, nil)))}},
		{name: "gre " + dst.String(), counter: "other_protocol", works: comesFrom(dst, frame.ProtoICMP),
			frames: [][]byte{toHost(frame.TypeIPv4, ip(dst, 47, make([]byte, 24)))}},
		{name: "fragmented udp " + dst.String(), counter: "fragment", works: datagramFrom(80), frames: fragments},
		{name: "ip options " + dst.String(), counter: "ip_options", works: comesFrom(dst, frame.ProtoICMP),
			frames: [][]byte{toHost(frame.TypeIPv4, frame.IPv4{Src: guestAddr(), Dst: dst, Protocol: frame.ProtoICMP, Options: recordRoute}.With(frame.Echo(frame.EchoRequest, "ping")))}},
	}
}

func spoofedAttempts(dst netip.Addr) []attempt {
	other := stranger()
	syn := ip(dst, frame.ProtoTCP, frame.TCP(guestAddr(), dst, 40003, 80, frame.SYN))
	return []attempt{
		{name: "other source MAC to " + dst.String(), counter: "other_source_mac", works: synAck(dst),
			frames: [][]byte{frame.Ethernet(guestnet.HostMAC, strangeMAC, frame.TypeIPv4, syn)}},
		{name: "other source address to " + dst.String(), counter: "other_source", works: synAck(dst),
			frames: [][]byte{toHost(frame.TypeIPv4, frame.IPv4{Src: other, Dst: dst, Protocol: frame.ProtoTCP}.With(frame.TCP(other, dst, 40004, 80, frame.SYN)))}},
		{name: "agent's port from another source address to " + dst.String(), counter: "other_source", works: synAck(dst),
			frames: [][]byte{toHost(frame.TypeIPv4, frame.IPv4{Src: other, Dst: dst, Protocol: frame.ProtoTCP}.With(frame.TCP(other, dst, guestnet.AgentPort, 80, frame.SYN)))}},
		{name: "priority tag to " + dst.String(), counter: "not_ipv4", works: synAck(dst),
			frames: [][]byte{toHost(frame.TypeVLAN, append([]byte{0, 0, 8, 0}, syn...))}},
	}
}

func linkAttempts() []attempt {
	broadcastEcho := frame.IPv4{Src: guestAddr(), Dst: hostAddr(), Protocol: frame.ProtoICMP}.With(frame.Echo(frame.EchoRequest, "ping"))
	isARP := func(p frame.Packet) bool { return p.Type == frame.TypeARP }
	return []attempt{
		{name: "arp request", counter: "not_ipv4", works: isARP,
			frames: [][]byte{frame.Ethernet(frame.BroadcastMAC, guestnet.GuestMAC, frame.TypeARP, frame.ARP(1, guestnet.GuestMAC, guestAddr(), hostAddr()))}},
		{name: "arp request to the host alone", counter: "not_ipv4", works: isARP,
			frames: [][]byte{toHost(frame.TypeARP, frame.ARP(1, guestnet.GuestMAC, guestAddr(), internet()))}},
		{name: "broadcast frame", counter: "other_destination_mac", works: comesFrom(hostAddr(), frame.ProtoICMP),
			frames: [][]byte{frame.Ethernet(frame.BroadcastMAC, guestnet.GuestMAC, frame.TypeIPv4, broadcastEcho)}},
	}
}

func ipv6Attempts() []attempt {
	syn := func(dst netip.Addr) []byte {
		return frame.IPv6(guest6(), dst, frame.ProtoTCP, frame.TCP(guest6(), dst, 40005, 80, frame.SYN))
	}
	query := frame.IPv6(guest6(), inet6(), frame.ProtoUDP, frame.UDP(guest6(), inet6(), 40006, 53, []byte("query")))
	echo := frame.IPv6(guest6(), inet6(), frame.ProtoICMPv6, frame.Sum(guest6(), inet6(), frame.ProtoICMPv6, 2, frame.Echo(frame.EchoRequest6, "ping")))
	return []attempt{
		{name: "ipv6 tcp", counter: "not_ipv4", works: synAck(inet6()), frames: [][]byte{toHost(frame.TypeIPv6, syn(inet6()))}},
		{name: "ipv6 udp", counter: "not_ipv4", works: datagramFrom(53), frames: [][]byte{toHost(frame.TypeIPv6, query)}},
		{name: "ipv6 echo", counter: "not_ipv4", works: comesFrom(inet6(), frame.ProtoICMPv6), frames: [][]byte{toHost(frame.TypeIPv6, echo)}},
		{name: "ipv6 neighbour solicitation", counter: "not_ipv4",
			works: func(p frame.Packet) bool {
				return p.Type == frame.TypeIPv6 && len(p.Payload) > 0 && p.Payload[0] == 136
			},
			frames: [][]byte{toHost(frame.TypeIPv6, frame.IPv6(guest6(), host6(), frame.ProtoICMPv6, frame.NeighbourSolicitation(guestnet.GuestMAC, guest6(), host6())))}},
	}
}

// TestOpenNamespaceAnswers is the positive control: without rules each attempt gets its answer.
func TestOpenNamespaceAnswers(t *testing.T) {
	t.Parallel()
	p := openNamespace(t)
	for _, a := range attempts() {
		if !p.ask(t, a) {
			t.Errorf("%s: no answer without rules, so its silence in a box proves nothing", a.name)
		}
	}
}

// ask repeats an attempt, as an IP stack would, until its answer comes.
func (p *player) ask(t *testing.T, a attempt) bool {
	t.Helper()
	for deadline := time.Now().Add(answerLimit); time.Now().Before(deadline); {
		p.send(t, a.frames...)
		if _, ok := p.await(t, 200*time.Millisecond, a.works); ok {
			return true
		}
	}
	return false
}

// openNamespace is a host that forwards nothing but answers everything, behind the same link as a box has.
func openNamespace(t *testing.T) *player {
	t.Helper()
	ns := netlab.New(t)
	ns.Addresses(t, internet(), metadata(), inet6())
	ns.Setting(t, "ipv4/icmp_ratelimit", "0")
	neighbours := map[netip.Addr]string{guestAddr(): guestnet.GuestMAC, guest6(): guestnet.GuestMAC,
		stranger(): guestnet.GuestMAC}
	tap := ns.Tap(t, netlab.Link{Name: "tap0", MAC: guestnet.HostMAC, Neighbours: neighbours,
		Addrs:  []netip.Prefix{netip.PrefixFrom(hostAddr(), guestnet.PrefixLen), netip.PrefixFrom(host6(), 64)},
		Routes: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}})
	ns.Serve(t, 53, 80, guestnet.AgentPort)
	return &player{tap: tap}
}

// TestBoxStopsEverything makes each attempt in a box with listeners in it, and looks at the rule that ended it.
func TestBoxStopsEverything(t *testing.T) {
	t.Parallel()
	m, id, box := newBox(t)
	ns := netlab.Open(t, m.Path(id))
	visits := ns.Serve(t, 53, 80, guestnet.AgentPort)
	tap, err := box.Tap(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tap.Close()
	p := &player{tap: tap}
	list := attempts()
	before, err := m.Counters(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range list {
		p.send(t, a.frames...)
		after := awaitCounter(t, m, id, a.counter, before[a.counter]+uint64(len(a.frames)))
		wantRefusal(t, p, a)
		before = after
	}
	for _, got := range p.seen {
		for _, a := range list {
			if a.works(got) && (a.refusal == nil || !a.refusal(got)) && !anyRefusal(list, got) {
				t.Errorf("%s: the box answered: % x", a.name, got.Raw)
			}
		}
	}
	if v := visits.List(); len(v) > 0 {
		t.Errorf("something reached a listener inside the box: %v", v)
	}
}

func anyRefusal(list []attempt, p frame.Packet) bool {
	for _, a := range list {
		if a.refusal != nil && a.refusal(p) {
			return true
		}
	}
	return false
}

// wantRefusal waits for the answer that a box gives by itself. Where it must give none, a refused TCP connection
// afterwards shows that an answer would have come by now.
func wantRefusal(t *testing.T, p *player, a attempt) {
	t.Helper()
	if a.refusal != nil {
		if _, ok := p.await(t, answerLimit, a.refusal); !ok {
			t.Errorf("%s: no refusal came back", a.name)
		}
		return
	}
	from := len(p.seen)
	marker := netip.MustParseAddr("203.0.113.77")
	p.send(t, segment(marker, 40009, 9, frame.SYN))
	isMarker := func(got frame.Packet) bool { return got.IsReset(marker, 9) }
	if _, ok := p.await(t, answerLimit, isMarker); !ok {
		t.Fatalf("%s: the marker was not refused", a.name)
	}
	for _, got := range p.seen[from:] {
		if !isMarker(got) {
			t.Errorf("%s: the box answered: % x", a.name, got.Raw)
		}
	}
}

// TestFloodIsBounded sends connection attempts as fast as it can: the answers stay within the rate.
func TestFloodIsBounded(t *testing.T) {
	t.Parallel()
	m, id, box := newBox(t)
	tap, err := box.Tap(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tap.Close()
	p := &player{tap: tap}
	const frames = 5000
	start := time.Now()
	for port := range uint16(frames) {
		p.send(t, segment(internet(), 40000, port, frame.SYN))
	}
	counts := awaitCounter(t, m, id, "flood", 1)
	for counts["flood"]+counts["tcp_reset"] < frames {
		counts = awaitCounter(t, m, id, "flood", counts["flood"]+1)
	}
	allowed := uint64(400 + 200*(time.Since(start).Seconds()+1))
	if counts["tcp_reset"] > allowed {
		t.Errorf("%d resets in %s, want at most %d", counts["tcp_reset"], time.Since(start), allowed)
	}
}

// TestEveryHostPortIsClosed goes through all TCP ports of the host's side, from an ordinary port and from the agent's,
// while something listens there.
func TestEveryHostPortIsClosed(t *testing.T) {
	t.Parallel()
	m, id, box := newBox(t)
	visits := netlab.Open(t, m.Path(id)).Serve(t, 1, 22, 80, 7070, guestnet.AgentPort, 65535)
	tap, err := box.Tap(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tap.Close()
	p := &player{tap: tap}
	for port := 1; port <= 65535; port++ {
		for _, from := range []uint16{40000, guestnet.AgentPort} {
			p.send(t, segment(hostAddr(), from, uint16(port), frame.SYN))
		}
	}
	counts := awaitCounter(t, m, id, "agent_candidate", 65535)
	for counts["flood"]+counts["tcp_reset"] < 65535 {
		counts = awaitCounter(t, m, id, "flood", 1)
	}
	for {
		got, ok := p.await(t, 100*time.Millisecond, func(frame.Packet) bool { return true })
		if !ok {
			break
		}
		if got.Protocol != frame.ProtoTCP || got.Payload[13]&frame.RST == 0 {
			t.Errorf("port %d answered: % x", binary.BigEndian.Uint16(got.Payload), got.Raw)
		}
	}
	if v := visits.List(); len(v) > 0 {
		t.Errorf("something reached a listener inside the box: %v", v)
	}
}
