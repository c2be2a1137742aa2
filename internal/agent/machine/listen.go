package machine

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/guestnet"
)

// listen opens the agent's port to the other end of the link and to nobody in the guest.
func (b *booter) listen(ctx context.Context) error {
	link, err := net.InterfaceByName(linkName)
	if err != nil {
		return err
	}
	config := net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) error {
		var filterErr error
		err := conn.Control(func(fd uintptr) { filterErr = acceptOnlyFromLink(int(fd), link.Index) })
		if err != nil {
			return err
		}
		return filterErr
	}}
	l, err := config.Listen(ctx, "tcp4", guestnet.AgentAddr().String())
	if err != nil {
		return fmt.Errorf("listen on %s: %w", guestnet.AgentAddr(), err)
	}
	b.listener = onlyFrom{Listener: l, peer: guestnet.HostAddr()}
	return nil
}

// acceptOnlyFromLink makes a socket blind for packets that did not come in by the link. What a process in the guest
// sends goes by way of the loopback, whatever address it claims to come from, and never even fills the backlog.
// (SO_BINDTODEVICE is no help: to it, a packet for the link's address came in by the link.)
func acceptOnlyFromLink(fd, index int) error {
	// The offset at which a filter finds the index of a packet's device (SKF_AD_OFF + SKF_AD_IFINDEX).
	const deviceIndex = 0xfffff000 + 8
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: deviceIndex},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(index), Jt: 0, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program); err != nil {
		return fmt.Errorf("filter of the listener: %w", err)
	}
	return nil
}

// onlyFrom is a listener that hangs up on everybody but one address.
type onlyFrom struct {
	net.Listener
	peer netip.Addr
}

func (o onlyFrom) Accept() (net.Conn, error) {
	for {
		conn, err := o.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if remote, ok := conn.RemoteAddr().(*net.TCPAddr); ok && remote.AddrPort().Addr().Unmap() == o.peer {
			return conn, nil
		}
		_ = conn.Close() // a stranger is owed nothing
	}
}
