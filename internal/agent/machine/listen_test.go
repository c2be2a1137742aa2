package machine

import (
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

func TestOnlyFromHangsUpOnStrangers(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	filtered := onlyFrom{Listener: l, peer: netip.MustParseAddr("127.0.0.2")}
	t.Cleanup(func() { filtered.Close() })
	dial := func(from string) net.Conn {
		t.Helper()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		conn, err := d.DialContext(t.Context(), "tcp4", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	stranger := dial("127.0.0.1")
	friend := dial("127.0.0.2")
	conn, err := filtered.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if conn.RemoteAddr().String() != friend.LocalAddr().String() {
		t.Errorf("accepted %s, want %s", conn.RemoteAddr(), friend.LocalAddr())
	}
	if n, err := stranger.Read(make([]byte, 1)); err == nil {
		t.Errorf("the stranger read %d bytes", n)
	}
}

func TestFilterNamesOneDevice(t *testing.T) {
	t.Parallel()
	loopback, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		index int
		want  bool
	}{"the device": {loopback.Index, true}, "another": {loopback.Index + 1000, false}} {
		l, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		raw, err := l.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		if err := raw.Control(func(fd uintptr) { err = acceptOnlyFromLink(int(fd), c.index) }); err != nil {
			t.Fatal(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		conn, err := net.Dial("udp4", l.LocalAddr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		// Over the loopback a datagram is queued, or dropped, before Write returns.
		var queued bool
		if err := raw.Control(func(fd uintptr) { queued = readable(t, fd) }); err != nil {
			t.Fatal(err)
		}
		if queued != c.want {
			t.Errorf("%s: a packet came through: %t, want %t", name, queued, c.want)
		}
	}
}

func readable(t *testing.T, fd uintptr) bool {
	t.Helper()
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	return n == 1
}
