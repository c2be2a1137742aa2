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

// Listen makes a unix stream socket at path that accepts only peers of the given uids (root is always allowed). A
// socket left by a dead process is replaced. mode and owner decide who can connect at all; the uid is checked too.
func Listen(path string, mode os.FileMode, gid int, allow ...uint32) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("replace socket %s: %w", path, err)
	}
	addr := &net.UnixAddr{Name: path, Net: "unix"}
	l, err := net.ListenUnix("unix", addr)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if err := restrict(path, mode, gid); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return Restrict(l, allow...), nil
}

// Restrict makes l accept only peers of the given uids and root; others are dropped.
func Restrict(l *net.UnixListener, allow ...uint32) net.Listener {
	return &credListener{UnixListener: l, allow: append(slices.Clone(allow), 0)}
}

func restrict(path string, mode os.FileMode, gid int) error {
	if err := os.Chmod(path, mode); err != nil {
		return fmt.Errorf("restrict socket: %w", err)
	}
	if gid >= 0 {
		if err := os.Chown(path, -1, gid); err != nil {
			return fmt.Errorf("restrict socket: %w", err)
		}
	}
	return nil
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
