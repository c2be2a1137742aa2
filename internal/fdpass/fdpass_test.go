package fdpass

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/rpc"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/sandboxnet"
)

func start(t *testing.T, open func(context.Context, sandbox.ID) (sandboxnet.AgentSocket, error)) Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fd.sock")
	l, err := rpc.Listen("unixpacket", path, -1)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s := &Server{Open: open, AllowUID: uint32(os.Getuid()), Logger: slog.New(slog.DiscardHandler)}
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return Client{Path: path}
}

// TestConnectedSocket passes one end of a socket pair and talks over it.
func TestConnectedSocket(t *testing.T) {
	t.Parallel()
	id := sandbox.NewID()
	peer := make(chan *os.File, 1)
	c := start(t, func(_ context.Context, got sandbox.ID) (sandboxnet.AgentSocket, error) {
		if got != id {
			t.Errorf("asked for %s, want %s", got, id)
		}
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return sandboxnet.AgentSocket{}, err
		}
		peer <- os.NewFile(uintptr(fds[1]), "peer")
		return sandboxnet.AgentSocket{File: os.NewFile(uintptr(fds[0]), "ours"), Connected: true}, nil
	})
	conn, err := c.DialAgent(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	p := <-peer
	defer p.Close()
	if _, err := conn.Write([]byte("ping")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4)
	if _, err := io.ReadFull(p, buf); err != nil || string(buf) != "ping" {
		t.Errorf("read %q, %v", buf, err)
	}
}

// TestErrorKeepsItsCode: what node refuses reaches the gateway as the same class of error.
func TestErrorKeepsItsCode(t *testing.T) {
	t.Parallel()
	c := start(t, func(context.Context, sandbox.ID) (sandboxnet.AgentSocket, error) {
		return sandboxnet.AgentSocket{}, &sandbox.Error{Code: sandbox.CodeNotFound, Message: "no such machine"}
	})
	_, err := c.DialAgent(t.Context(), sandbox.NewID())
	if sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("got %v", err)
	}
	if _, err := c.DialAgent(t.Context(), "../etc/passwd"); sandbox.CodeOf(err) != sandbox.CodeInvalidArgument {
		t.Errorf("a bad id gave %v", err)
	}
}

// TestAbsentNode: no server, a retryable error.
func TestAbsentNode(t *testing.T) {
	t.Parallel()
	_, err := Client{Path: filepath.Join(t.TempDir(), "none")}.DialAgent(t.Context(), sandbox.NewID())
	if sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("got %v", err)
	}
}

func rawSocket(t *testing.T) *os.File {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), "raw")
}

// TestConnect covers the three ends of a non-blocking connect: accepted, refused, given up.
func TestConnect(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := netip.MustParseAddrPort(l.Addr().String())
	f := rawSocket(t)
	defer f.Close()
	sock, err := connect(t.Context(), f, addr)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	sock.Close()
	l.Close()
	f2 := rawSocket(t)
	defer f2.Close()
	if _, err := connect(t.Context(), f2, addr); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("closed port: %v", err)
	}
	full := fullListener(t)
	f3 := rawSocket(t)
	defer f3.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if s, err := connect(ctx, f3, full); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a listener that never accepts: %v %v", s, err)
	}
}

// fullListener returns the address of a listener whose queue is full, so that further connects stay under way.
func fullListener(t *testing.T) netip.AddrPort {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	in := sa.(*unix.SockaddrInet4)
	addr := netip.AddrPortFrom(netip.AddrFrom4(in.Addr), uint16(in.Port))
	for range 4 {
		f := rawSocket(t)
		t.Cleanup(func() { f.Close() })
		err := unix.Connect(int(f.Fd()), &unix.SockaddrInet4{Addr: in.Addr, Port: in.Port})
		if err != nil && !errors.Is(err, unix.EINPROGRESS) {
			t.Fatal(err)
		}
	}
	return addr
}
