package linuxnet

import (
	"context"
	"fmt"
	"os"

	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/sandboxnet"
	"github.com/space-sandbox/space/internal/sandboxnet/nsthread"
	"golang.org/x/sys/unix"
)

// box is one sandbox's namespace, held open.
type box struct {
	id sandbox.ID
	ns *os.File
}

// Tap opens the host's end of the guest's interface, with a vnet header of the default size and no offloads: the VMM
// sets what it wants. It fails while another descriptor of it is open. When it returns, frames pass in both directions.
func (b *box) Tap(ctx context.Context) (*os.File, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	fd := -1
	err := nsthread.In(b.ns, func() error {
		var err error
		fd, err = attachTap(ctx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("tap of %s: %w", b.id, err)
	}
	return tapFile(fd), nil
}

// AgentSocket makes an unconnected socket inside the namespace. The rules let it reach guestnet.AgentAddr and nothing
// else, and only because this process makes it: its owner is root.
func (b *box) AgentSocket(ctx context.Context) (sandboxnet.AgentSocket, error) {
	if err := ctx.Err(); err != nil {
		return sandboxnet.AgentSocket{}, err
	}
	fd := -1
	err := nsthread.In(b.ns, func() error {
		var err error
		fd, err = agentSocket()
		return err
	})
	if err != nil {
		return sandboxnet.AgentSocket{}, fmt.Errorf("socket to the agent of %s: %w", b.id, err)
	}
	return sandboxnet.AgentSocket{File: os.NewFile(uintptr(fd), "agent:"+string(b.id))}, nil
}

// agentSocket makes a socket that finds out within a minute that the other side is gone: guests vanish without a
// farewell. An emulated guest on a busy host may well be silent for some seconds.
func agentSocket() (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	for _, o := range []struct {
		name              string
		level, opt, value int
	}{
		{"SO_KEEPALIVE", unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{"TCP_KEEPIDLE", unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 15},
		{"TCP_KEEPINTVL", unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 15},
		{"TCP_KEEPCNT", unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 3},
		{"TCP_USER_TIMEOUT", unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 60_000}, // milliseconds
		{"TCP_NODELAY", unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
	} {
		if err := unix.SetsockoptInt(fd, o.level, o.opt, o.value); err != nil {
			unix.Close(fd)
			return -1, fmt.Errorf("set %s: %w", o.name, err)
		}
	}
	return fd, nil
}

// Close releases the namespace descriptor; the box stays.
func (b *box) Close() error { return b.ns.Close() }
