package linuxnet

import (
	"encoding/binary"
	"fmt"
	"net"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/space-sandbox/space/internal/guestnet"
	"golang.org/x/sys/unix"
)

// The rules, in nft's language (G, H: the guest's and the host's address; A: the agent's port). Each line has a
// counter of the name on its right.
//
//	table netdev space {
//	  chain guest { type filter hook ingress device tap0 priority 0; policy drop;   # everything a guest sends
//	    ether saddr != guest MAC                                      drop          # other_source_mac
//	    ether type != ip  (ARP, IPv6, VLAN, LLC)                      drop          # not_ipv4
//	    ether daddr != host MAC                                       drop          # other_destination_mac
//	    ip version/length != 4/5                                      drop          # ip_options
//	    ip saddr != G                                                 drop          # other_source
//	    ip flags/offset not 0 or DF                                   drop          # fragment
//	    tcp, ip daddr H, sport A                                      accept        # agent_candidate
//	    limit rate over 200/second burst 400                          drop          # flood
//	    tcp                                                           reset         # tcp_reset
//	    udp                                                           refuse        # udp_refused
//	                                                                  drop          # other_protocol
//	  }
//	}
//	table inet space {
//	  chain input { hook input; policy drop;
//	    iif tap0, ct established, tcp sport A                         accept        # agent_in
//	    iif tap0, tcp, limit rate 200/second burst 400                reset         # unknown_flow
//	                                                                  drop          # input_dropped
//	  }
//	  chain forward { hook forward; policy drop;                      drop          # forward_dropped
//	  }
//	  chain output { hook output; policy drop;
//	    oif tap0, ip daddr G, tcp dport A, ct established             accept        # agent_out
//	    oif tap0, ip daddr G, tcp dport A, flags rst                  accept        # reset_out
//	    oif tap0, ip daddr G, tcp dport A, ct new, socket of root, ct count over 256   drop   # too_many_flows
//	    oif tap0, ip daddr G, tcp dport A, ct new, socket of root     accept        # agent_new
//	                                                                  drop          # output_dropped
//	  }
//	}
//
// Resets and refusals of the first chain are made by the ingress hook itself and go straight to the tap: they need no
// route, no connection tracking and no rule for what leaves. So a guest makes no entry in the tracking table: only
// node's own sockets do. Established flows are accepted without asking for the socket's owner, because after a close
// the kernel finishes them without one.
const (
	tableName = "space"
	// refusals and refusalBurst bound the answers a guest can cause, per second.
	refusals     = 200
	refusalBurst = 400
	// maxFlows bounds the connections to one agent, and so the entries in the tracking table.
	maxFlows = 256
)

// installRules puts the whole rule set into the calling thread's namespace in one transaction.
func installRules() error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	guest, err := newGuestTable(conn)
	if err != nil {
		return err
	}
	guest.addIngress()
	own := newHostTable(conn)
	own.addInput()
	own.addForward()
	own.addOutput()
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("install packet rules: %w", err)
	}
	return nil
}

// ruleSet adds rules with a named counter each to one table.
type ruleSet struct {
	conn  *nftables.Conn
	table *nftables.Table
}

// rule adds matches, then the counter, then the outcome.
func (r ruleSet) rule(chain *nftables.Chain, counter string, outcome expr.Any, matches ...[]expr.Any) {
	r.conn.AddObj(&nftables.NamedObj{Table: r.table, Name: counter, Type: nftables.ObjTypeCounter, Obj: &expr.Counter{}})
	var exprs []expr.Any
	for _, m := range matches {
		exprs = append(exprs, m...)
	}
	exprs = append(exprs, &expr.Objref{Type: int(nftables.ObjTypeCounter), Name: counter}, outcome)
	r.conn.AddRule(&nftables.Rule{Table: r.table, Chain: chain, Exprs: exprs})
}

// guestTable is what sees the guest's frames first.
type guestTable struct {
	ruleSet
	guestMAC, hostMAC net.HardwareAddr
}

func newGuestTable(conn *nftables.Conn) (*guestTable, error) {
	guestMAC, err := net.ParseMAC(guestnet.GuestMAC)
	if err != nil {
		return nil, fmt.Errorf("guest MAC: %w", err)
	}
	hostMAC, err := net.ParseMAC(guestnet.HostMAC)
	if err != nil {
		return nil, fmt.Errorf("host MAC: %w", err)
	}
	table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyNetdev, Name: tableName})
	return &guestTable{ruleSet: ruleSet{conn: conn, table: table}, guestMAC: guestMAC, hostMAC: hostMAC}, nil
}

func (t *guestTable) addIngress() {
	policy := nftables.ChainPolicyDrop
	c := t.conn.AddChain(&nftables.Chain{Table: t.table, Name: "guest", Type: nftables.ChainTypeFilter, Device: tapName,
		Hooknum: nftables.ChainHookIngress, Priority: nftables.ChainPriorityFilter, Policy: &policy})
	t.rule(c, "other_source_mac", drop(), differs(link(6, 6), t.guestMAC))
	// Read from the frame, not from the packet's metadata: the kernel takes VLAN tags off before this hook.
	t.rule(c, "not_ipv4", drop(), differs(link(12, 2), be16(unix.ETH_P_IP)))
	t.rule(c, "other_destination_mac", drop(), differs(link(0, 6), t.hostMAC))
	t.rule(c, "ip_options", drop(), differs(header(0, 1), []byte{0x45}))
	t.rule(c, "other_source", drop(), differs(header(12, 4), guestnet.GuestAddr().AsSlice()))
	t.rule(c, "fragment", drop(), differs(masked(header(6, 2), be16(^uint16(0x4000))), be16(0)))
	t.rule(c, "agent_candidate", accept(), protocol(unix.IPPROTO_TCP),
		equals(header(16, 4), guestnet.HostAddr().AsSlice()), equals(transport(0, 2), be16(guestnet.AgentPort)))
	t.rule(c, "flood", drop(), limit(true))
	t.rule(c, "tcp_reset", &expr.Reject{Type: unix.NFT_REJECT_TCP_RST}, protocol(unix.IPPROTO_TCP))
	t.rule(c, "udp_refused", &expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: icmpPortUnreachable},
		protocol(unix.IPPROTO_UDP))
	t.rule(c, "other_protocol", drop())
}

// icmpPortUnreachable is the code of RFC 792.
const icmpPortUnreachable = 3

// hostTable is what guards the namespace's own IP stack, in both directions.
type hostTable struct{ ruleSet }

func newHostTable(conn *nftables.Conn) *hostTable {
	table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: tableName})
	return &hostTable{ruleSet{conn: conn, table: table}}
}

func (t *hostTable) chain(name string, hook *nftables.ChainHook) *nftables.Chain {
	policy := nftables.ChainPolicyDrop
	return t.conn.AddChain(&nftables.Chain{Table: t.table, Name: name, Type: nftables.ChainTypeFilter, Hooknum: hook,
		Priority: nftables.ChainPriorityFilter, Policy: &policy})
}

func (t *hostTable) addInput() {
	c := t.chain("input", nftables.ChainHookInput)
	fromTap := [][]expr.Any{
		equals(meta(expr.MetaKeyIIFNAME), interfaceName(tapName)),
		equals(meta(expr.MetaKeyNFPROTO), []byte{unix.NFPROTO_IPV4}),
		protocol(unix.IPPROTO_TCP),
	}
	t.rule(c, "agent_in", accept(), append(fromTap, equals(transport(0, 2), be16(guestnet.AgentPort)),
		tracked(expr.CtStateBitESTABLISHED))...)
	t.rule(c, "unknown_flow", &expr.Reject{Type: unix.NFT_REJECT_TCP_RST}, append(fromTap, limit(false))...)
	t.rule(c, "input_dropped", drop())
}

func (t *hostTable) addForward() {
	t.rule(t.chain("forward", nftables.ChainHookForward), "forward_dropped", drop())
}

func (t *hostTable) addOutput() {
	c := t.chain("output", nftables.ChainHookOutput)
	with := func(more ...[]expr.Any) [][]expr.Any {
		return append([][]expr.Any{
			equals(meta(expr.MetaKeyOIFNAME), interfaceName(tapName)),
			equals(meta(expr.MetaKeyNFPROTO), []byte{unix.NFPROTO_IPV4}),
			equals(header(16, 4), guestnet.GuestAddr().AsSlice()),
			protocol(unix.IPPROTO_TCP),
			equals(transport(2, 2), be16(guestnet.AgentPort)),
		}, more...)
	}
	rootSocket := equals(meta(expr.MetaKeySKUID), binaryutil.NativeEndian.PutUint32(0))
	t.rule(c, "agent_out", accept(), with(tracked(expr.CtStateBitESTABLISHED))...)
	t.rule(c, "reset_out", accept(), with(differs(masked(transport(13, 1), []byte{tcpRST}), []byte{0}))...)
	t.rule(c, "too_many_flows", drop(), with(tracked(expr.CtStateBitNEW), rootSocket,
		[]expr.Any{&expr.Connlimit{Count: maxFlows, Flags: expr.NFT_CONNLIMIT_F_INV}})...)
	t.rule(c, "agent_new", accept(), with(tracked(expr.CtStateBitNEW), rootSocket)...)
	t.rule(c, "output_dropped", drop())
}

// tcpRST is the bit in byte 13 of a TCP header.
const tcpRST = 0x04

func be16(v uint16) []byte { return binary.BigEndian.AppendUint16(nil, v) }
