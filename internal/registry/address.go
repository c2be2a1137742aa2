package registry

import (
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/space-sandbox/space/internal/sandbox"
)

// reserved are ranges that netip does not know by name: carrier NAT, protocol assignments, benchmarks, documentation,
// class E, and those that carry an IPv4 address inside an IPv6 one (NAT64, 6to4, Teredo).
func reserved() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"),
		netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("198.51.100.0/24"),
		netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("240.0.0.0/4"), netip.MustParsePrefix("64:ff9b::/96"),
		netip.MustParsePrefix("64:ff9b:1::/48"), netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("2001::/32"),
		netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("100::/64"), netip.MustParsePrefix("fec0::/10"),
	}
}

// checkAddress refuses everything that is not a public address, unless it is in allow. It is asked with the address that
// is being connected to, after all names and redirects have been resolved.
func checkAddress(address string, allow []netip.Prefix) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("connect to %q: %w", address, err)
	}
	ip := ap.Addr().Unmap().WithZone("")
	holds := func(p netip.Prefix) bool { return p.Contains(ip) }
	if slices.ContainsFunc(allow, holds) {
		return nil
	}
	if ip.IsGlobalUnicast() && !ip.IsPrivate() && !slices.ContainsFunc(reserved(), holds) {
		return nil
	}
	return &sandbox.Error{Code: sandbox.CodeForbidden, Message: "images are not fetched from this address",
		Cause: ip.String() + " is private, local or reserved", Remedy: "the operator can allow it: space up --registry-allow"}
}

// controlDial is a net.Dialer.Control that asks checkAddress.
func controlDial(allow []netip.Prefix) func(network, address string, _ syscall.RawConn) error {
	return func(_, address string, _ syscall.RawConn) error { return checkAddress(address, allow) }
}
