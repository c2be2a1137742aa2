// Package guestnet holds the addresses that are the same in every sandbox, so that a saved machine fits anywhere and
// no guest can even name another.
package guestnet

import "net/netip"

// The link between a guest and the host side of its namespace. No ARP crosses it: both sides have static neighbours.
const (
	GuestMAC  = "02:00:00:00:00:15"
	HostMAC   = "02:00:00:00:00:16"
	PrefixLen = 30

	// AgentPort is where the agent listens on the guest's address. It is below 1024, so only root in the guest
	// could take it first, and no ingress form can be asked for it.
	AgentPort = 1018
)

// GuestAddr is the guest's address.
func GuestAddr() netip.Addr { return netip.AddrFrom4([4]byte{169, 254, 0, 21}) }

// HostAddr is the host's side of the link and the guest's only gateway.
func HostAddr() netip.Addr { return netip.AddrFrom4([4]byte{169, 254, 0, 22}) }

// AgentAddr is where the agent listens.
func AgentAddr() netip.AddrPort { return netip.AddrPortFrom(GuestAddr(), AgentPort) }
