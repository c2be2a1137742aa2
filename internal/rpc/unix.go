package rpc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Listen makes a socket at path for the caller and one group (-1: that of the process); one that a dead process left is
// replaced. network is "unix" or "unixpacket".
func Listen(network, path string, gid int) (*net.UnixListener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("replace socket: %w", err)
	}
	l, err := net.ListenUnix(network, &net.UnixAddr{Name: path, Net: network})
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	//nolint:gosec // for the group; Restrict looks at the uid too
	if err := errors.Join(os.Chown(path, -1, gid), os.Chmod(path, 0o660)); err != nil {
		return nil, errors.Join(fmt.Errorf("restrict socket: %w", err), l.Close())
	}
	return l, nil
}

// Restrict makes l accept only peers of the given uids and root; others are dropped.
func Restrict(l *net.UnixListener, allow ...uint32) net.Listener {
	return &credListener{UnixListener: l, allow: append(slices.Clone(allow), 0)}
}

// credListener drops connections of peers that are not allowed.
type credListener struct {
	*net.UnixListener
	allow []uint32
}

func (l *credListener) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		cred, err := PeerCred(c)
		if err == nil && slices.Contains(l.allow, cred.Uid) {
			return c, nil
		}
		c.Close()
	}
}

// PeerCred returns who was on the other end of c when it connected.
func PeerCred(c *net.UnixConn) (*unix.Ucred, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("peer credentials: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(err, credErr); err != nil {
		return nil, fmt.Errorf("peer credentials: %w", err)
	}
	return cred, nil
}

// DialUnix returns a dial function for the socket at path.
func DialUnix(path string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}
}
