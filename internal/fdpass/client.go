package fdpass

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/guestnet"
	"github.com/space-sandbox/space/internal/sandbox"
)

// Client is the gateway's side of fd.sock. Safe for concurrent use.
type Client struct {
	Path string
}

// DialAgent connects to the agent of a sandbox: node makes the socket in the sandbox's namespace, the connection is
// made here, bounded by ctx.
func (c Client) DialAgent(ctx context.Context, id sandbox.ID) (net.Conn, error) {
	file, connected, err := c.socket(ctx, id)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if !connected {
		if file, err = connect(ctx, file, guestnet.AgentAddr()); err != nil {
			return nil, fmt.Errorf("connect to the agent: %w", err)
		}
		defer file.Close()
	}
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, fmt.Errorf("socket of node: %w", err)
	}
	return conn, nil
}

func (c Client) socket(ctx context.Context, id sandbox.ID) (f *os.File, connected bool, err error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unixpacket", c.Path)
	if err != nil {
		return nil, false, &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "node does not answer",
			Cause: err.Error(), Remedy: "try again in a moment; see the log of space up", Err: err}
	}
	defer conn.Close()
	deadline := time.Now().Add(exchangeTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, false, err
	}
	if _, err := conn.Write([]byte(id)); err != nil {
		return nil, false, fmt.Errorf("ask node for a socket: %w", err)
	}
	packet, file, err := receive(conn.(*net.UnixConn))
	if err != nil {
		return nil, false, fmt.Errorf("answer of node: %w", err)
	}
	switch {
	case len(packet) > 0 && packet[0] == kindError && file == nil:
		return nil, false, decodeError(packet[1:])
	case len(packet) == 1 && file != nil && (packet[0] == kindUnconnected || packet[0] == kindConnected):
		return file, packet[0] == kindConnected, nil
	case file != nil:
		err = file.Close()
	}
	return nil, false, errors.Join(errors.New("node sent a malformed answer"), err)
}

// connect starts the connection before the descriptor meets the poller: an unconnected TCP socket would report itself
// ready at once. It returns a new file for the same socket.
func connect(ctx context.Context, file *os.File, to netip.AddrPort) (*os.File, error) {
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	err = unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()})
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return nil, errors.Join(err, unix.Close(fd))
	}
	sock := os.NewFile(uintptr(fd), "agent")
	if err := awaitConnected(ctx, sock); err != nil {
		return nil, errors.Join(err, sock.Close())
	}
	return sock, nil
}

func awaitConnected(ctx context.Context, sock *os.File) error {
	stop := context.AfterFunc(ctx, func() { _ = sock.SetWriteDeadline(time.Unix(1, 0)) }) // wakes the wait below
	defer stop()
	raw, err := sock.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	err = raw.Write(func(fd uintptr) bool {
		code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		if err != nil || code != 0 {
			result = err
			if code != 0 {
				result = unix.Errno(code)
			}
			return true
		}
		_, err = unix.Getpeername(int(fd))
		return err == nil // else still under way
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.Join(result, err)
}
