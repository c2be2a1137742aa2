package machine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// rtnetlink sends requests to the kernel's routing socket. The few that a guest needs do not merit a library in a
// binary that every guest loads.
type rtnetlink struct {
	fd  int
	seq uint32
}

func openRtnetlink() (*rtnetlink, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("rtnetlink: %w", os.NewSyscallError("socket", err))
	}
	return &rtnetlink{fd: fd}, nil
}

func (r *rtnetlink) close() error { return unix.Close(r.fd) }

// attribute is one attribute of a message.
type attribute struct {
	kind uint16
	data []byte
}

func number(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

func index(i int) []byte { return number(uint32(i)) }

// linkUp sets an interface up.
func (r *rtnetlink) linkUp(i int) error {
	// struct ifinfomsg: family, pad, type, index, flags, change
	body := binary.NativeEndian.AppendUint32([]byte{unix.AF_UNSPEC, 0, 0, 0}, uint32(i))
	body = append(append(body, number(unix.IFF_UP)...), number(unix.IFF_UP)...)
	return r.do("link up", unix.RTM_NEWLINK, 0, body)
}

// addAddress gives an interface an address.
func (r *rtnetlink) addAddress(i int, p netip.Prefix) error {
	// struct ifaddrmsg: family, prefix length, flags, scope, index
	body := append([]byte{unix.AF_INET, byte(p.Bits()), 0, unix.RT_SCOPE_UNIVERSE}, index(i)...)
	addr := p.Addr().AsSlice()
	return r.do("address", unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, body,
		attribute{unix.IFA_LOCAL, addr}, attribute{unix.IFA_ADDRESS, addr})
}

// addNeighbour says, for good, which hardware address an address of the link has.
func (r *rtnetlink) addNeighbour(i int, addr netip.Addr, mac net.HardwareAddr) error {
	// struct ndmsg: family, pad (3), index, state, flags, type
	body := append([]byte{unix.AF_INET, 0, 0, 0}, index(i)...)
	body = binary.NativeEndian.AppendUint16(body, unix.NUD_PERMANENT)
	body = append(body, 0, 0)
	return r.do("neighbour", unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, body,
		attribute{unix.NDA_DST, addr.AsSlice()}, attribute{unix.NDA_LLADDR, mac})
}

// addDefaultRoute sends everything that has no other way to via.
func (r *rtnetlink) addDefaultRoute(i int, via netip.Addr) error {
	// struct rtmsg: family, destination and source length, tos, table, protocol, scope, type, flags
	body := []byte{unix.AF_INET, 0, 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_BOOT, unix.RT_SCOPE_UNIVERSE, unix.RTN_UNICAST, 0, 0, 0, 0}
	return r.do("default route", unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, body,
		attribute{unix.RTA_GATEWAY, via.AsSlice()}, attribute{unix.RTA_OIF, index(i)})
}

// do sends one request and waits for its acknowledgement.
func (r *rtnetlink) do(what string, kind uint16, flags int, body []byte, attributes ...attribute) error {
	r.seq++
	message := encodeMessage(kind, uint16(flags)|unix.NLM_F_REQUEST|unix.NLM_F_ACK, r.seq, body, attributes)
	if err := unix.Sendto(r.fd, message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("%s: %w", what, os.NewSyscallError("sendto", err))
	}
	buf := make([]byte, 4096)
	for {
		n, _, err := unix.Recvfrom(r.fd, buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", what, os.NewSyscallError("recvfrom", err))
		}
		if err := decodeAck(buf[:n], r.seq); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	}
}

// encodeMessage lays out struct nlmsghdr, the body and its attributes, each padded to four bytes.
func encodeMessage(kind, flags uint16, seq uint32, body []byte, attributes []attribute) []byte {
	message := make([]byte, unix.SizeofNlMsghdr, 128)
	message = append(message, body...)
	for _, a := range attributes {
		message = binary.NativeEndian.AppendUint16(message, uint16(unix.SizeofRtAttr+len(a.data)))
		message = binary.NativeEndian.AppendUint16(message, a.kind)
		message = append(message, a.data...)
		for len(message)%unix.NLMSG_ALIGNTO != 0 {
			message = append(message, 0)
		}
	}
	binary.NativeEndian.PutUint32(message[0:], uint32(len(message)))
	binary.NativeEndian.PutUint16(message[4:], kind)
	binary.NativeEndian.PutUint16(message[6:], flags)
	binary.NativeEndian.PutUint32(message[8:], seq)
	return message
}

// decodeAck reads struct nlmsghdr and the error number behind it.
func decodeAck(message []byte, seq uint32) error {
	if len(message) < unix.SizeofNlMsghdr+4 {
		return errors.New("rtnetlink: short answer")
	}
	if kind := binary.NativeEndian.Uint16(message[4:]); kind != unix.NLMSG_ERROR {
		return fmt.Errorf("rtnetlink: answer of type %d", kind)
	}
	if got := binary.NativeEndian.Uint32(message[8:]); got != seq {
		return fmt.Errorf("rtnetlink: answer to request %d, not %d", got, seq)
	}
	if code := int32(binary.NativeEndian.Uint32(message[unix.SizeofNlMsghdr:])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}
