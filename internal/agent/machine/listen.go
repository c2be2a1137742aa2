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

// listen opens the agent's port. The socket is bound to the interface, so that a connection from inside the guest,
// which would come by way of the loopback, finds no listener whatever address it claims to come from.
func (b *booter) listen(ctx context.Context) error {
	config := net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) error {
		var bindErr error
		err := conn.Control(func(fd uintptr) {
			bindErr = unix.BindToDevice(int(fd), linkName)
		})
		if err != nil {
			return err
		}
		return bindErr
	}}
	l, err := config.Listen(ctx, "tcp4", guestnet.AgentAddr().String())
	if err != nil {
		return fmt.Errorf("listen on %s: %w", guestnet.AgentAddr(), err)
	}
	b.listener = onlyFrom{Listener: l, peer: guestnet.HostAddr()}
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
