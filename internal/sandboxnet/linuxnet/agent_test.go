package linuxnet_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/space-sandbox/space/internal/guestnet"
	"github.com/space-sandbox/space/internal/sandboxnet"
	"github.com/space-sandbox/space/internal/sandboxnet/netlab"
	"github.com/space-sandbox/space/internal/sandboxnet/netlab/frame"
	"golang.org/x/sys/unix"
)

// wiredGuest is a namespace that takes a guest's place at the end of a box's tap: a Linux network stack of its own with
// the guest's addresses.
func wiredGuest(t *testing.T, box sandboxnet.Box) *netlab.Namespace {
	t.Helper()
	ns := netlab.New(t)
	inner := ns.Tap(t, netlab.Link{Name: "eth0", MAC: guestnet.GuestMAC,
		Addrs:      []netip.Prefix{netip.PrefixFrom(guestAddr(), guestnet.PrefixLen)},
		Neighbours: map[netip.Addr]string{hostAddr(): guestnet.HostMAC}})
	outer, err := box.Tap(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	netlab.Wire(t, inner, outer)
	return ns
}

// connect connects a socket of a box to addr, as the gateway does.
func connect(t *testing.T, f *os.File, addr netip.AddrPort) (net.Conn, error) {
	t.Helper()
	raw, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var result error
	started := false
	err = raw.Write(func(fd uintptr) bool {
		if !started {
			started = true
			result = unix.Connect(int(fd), &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()})
			return !errors.Is(result, unix.EINPROGRESS)
		}
		code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		if result = err; err == nil && code != 0 {
			result = unix.Errno(code)
		}
		if result != nil {
			return true
		}
		// The poller may wake for what it saw before the connect.
		_, result = unix.Getpeername(int(fd))
		return !errors.Is(result, unix.ENOTCONN)
	})
	if err := errors.Join(err, result); err != nil {
		return nil, err
	}
	c, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c, nil
}

func agentSocket(t *testing.T, box sandboxnet.Box) *os.File {
	t.Helper()
	s, err := box.AgentSocket(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.File.Close() })
	if s.Connected {
		t.Error("a socket of a real box says that it is connected")
	}
	return s.File
}

// guestListener listens inside the guest.
func guestListener(t *testing.T, guest *netlab.Namespace, port uint16) net.Listener {
	t.Helper()
	var ln net.Listener
	guest.Do(t, func() error {
		var err error
		var lc net.ListenConfig
		ln, err = lc.Listen(context.Background(), "tcp4", netip.AddrPortFrom(guestAddr(), port).String())
		return err
	})
	t.Cleanup(func() { ln.Close() })
	return ln
}

// TestAgentSocketReachesTheAgent sends two megabytes there and back and sees the orderly end on both sides.
func TestAgentSocketReachesTheAgent(t *testing.T) {
	t.Parallel()
	_, _, box := newBox(t)
	ln := guestListener(t, wiredGuest(t, box), guestnet.AgentPort)
	served := make(chan error, 1)
	go func() {
		c, err := ln.Accept()
		if err != nil {
			served <- err
			return
		}
		defer c.Close()
		if from := c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr(); from != hostAddr() {
			served <- fmt.Errorf("the agent is called from %s", from)
			return
		}
		_, err = io.Copy(c, c)
		served <- err
	}()
	c, err := connect(t, agentSocket(t, box), guestnet.AgentAddr())
	if err != nil {
		t.Fatal(err)
	}
	want := bytes.Repeat([]byte("0123456789abcdef"), 1<<17)
	go func() {
		c.Write(want)
		c.(*net.TCPConn).CloseWrite()
	}()
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("echo of %d bytes: got %d, %v", len(want), len(got), err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// TestCloseReachesTheAgent closes right after a write: the kernel ends the flow without a socket.
func TestCloseReachesTheAgent(t *testing.T) {
	t.Parallel()
	_, _, box := newBox(t)
	ln := guestListener(t, wiredGuest(t, box), guestnet.AgentPort)
	f := agentSocket(t, box)
	c, err := connect(t, f, guestnet.AgentAddr())
	if err != nil {
		t.Fatal(err)
	}
	server, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if _, err := c.Write(make([]byte, 100_000)); err != nil { // more than a window, so some follows after the close
		t.Fatal(err)
	}
	c.Close()
	f.Close()
	server.SetReadDeadline(time.Now().Add(20 * time.Second))
	if got, err := io.ReadAll(server); err != nil || len(got) != 100_000 {
		t.Errorf("the agent read %d bytes, %v; want 100000 and the end", len(got), err)
	}
}

// TestClosedAgentPortRefusesAtOnce makes sure that a guest's refusal comes through: waiting for readiness depends on it.
func TestClosedAgentPortRefusesAtOnce(t *testing.T) {
	t.Parallel()
	_, _, box := newBox(t)
	wiredGuest(t, box)
	if _, err := connect(t, agentSocket(t, box), guestnet.AgentAddr()); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("connect: %v, want ECONNREFUSED", err)
	}
}

// TestAgentSocketReachesNothingElse tries other ports of the guest, where something listens, and other addresses.
func TestAgentSocketReachesNothingElse(t *testing.T) {
	t.Parallel()
	m, id, box := newBox(t)
	visits := wiredGuest(t, box).Serve(t, 22, 80)
	for _, addr := range []netip.AddrPort{
		netip.AddrPortFrom(guestAddr(), 22), netip.AddrPortFrom(guestAddr(), 80),
		netip.AddrPortFrom(hostAddr(), guestnet.AgentPort), netip.AddrPortFrom(internet(), 80),
		netip.MustParseAddrPort("127.0.0.1:80"),
	} {
		f := agentSocket(t, box)
		if err := f.SetWriteDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if _, err := connect(t, f, addr); err == nil {
			t.Errorf("connected to %s", addr)
		}
	}
	if v := visits.List(); len(v) > 0 {
		t.Errorf("something reached the guest: %v", v)
	}
	if counts := awaitCounter(t, m, id, "output_dropped", 2); counts["agent_new"] != 0 {
		t.Errorf("new flows to the agent: %d, want none", counts["agent_new"])
	}
}

// TestOtherUsersSocketIsStopped makes a socket inside the namespace as the VMM's own uid would.
func TestOtherUsersSocketIsStopped(t *testing.T) {
	t.Parallel()
	m, id, box := newBox(t)
	guestListener(t, wiredGuest(t, box), guestnet.AgentPort)
	var fd int
	netlab.Open(t, m.Path(id)).Do(t, func() error {
		// This thread alone; it is thrown away afterwards.
		if _, _, errno := unix.RawSyscall(unix.SYS_SETFSUID, 12345, 0, 0); errno != 0 {
			return errno
		}
		var err error
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		return err
	})
	f := os.NewFile(uintptr(fd), "socket of another user")
	defer f.Close()
	if err := f.SetWriteDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := connect(t, f, guestnet.AgentAddr()); err == nil {
		t.Error("a socket of another user reached the agent")
	}
	awaitCounter(t, m, id, "output_dropped", 1)
}

// TestUnknownFlowIsReset sends data of a connection that nobody has.
func TestUnknownFlowIsReset(t *testing.T) {
	t.Parallel()
	_, _, box := newBox(t)
	tap, err := box.Tap(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tap.Close()
	p := &player{tap: tap}
	p.send(t, segment(hostAddr(), guestnet.AgentPort, 50000, frame.ACK|frame.FIN))
	if _, ok := p.await(t, answerLimit, func(got frame.Packet) bool { return got.IsReset(hostAddr(), 50000) }); !ok {
		t.Error("no reset")
	}
}

// TestFlowsAreCapped opens connections until the box refuses more.
func TestFlowsAreCapped(t *testing.T) {
	t.Parallel()
	m, id, box := newBox(t)
	ln := guestListener(t, wiredGuest(t, box), guestnet.AgentPort)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { c.Close() })
		}
	}()
	for n := range 256 {
		if _, err := connect(t, agentSocket(t, box), guestnet.AgentAddr()); err != nil {
			t.Fatalf("connection %d: %v", n+1, err)
		}
	}
	f := agentSocket(t, box)
	if err := f.SetWriteDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := connect(t, f, guestnet.AgentAddr()); err == nil {
		t.Error("connection 257 succeeded")
	}
	awaitCounter(t, m, id, "too_many_flows", 1)
}
