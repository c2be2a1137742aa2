package netlab

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
	"testing"
)

// Visits collects what reached a service.
type Visits struct {
	mu   sync.Mutex
	list []string
}

func (v *Visits) add(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.list) < 1000 {
		v.list = append(v.list, fmt.Sprintf(format, args...))
	}
}

// List returns one line for each connection or datagram so far.
func (v *Visits) List() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return append([]string(nil), v.list...)
}

// Serve answers on the port of every address of the namespace, by TCP (a greeting, then an echo) and by UDP (an echo),
// until the test ends, and notes each visit. It answers nothing by itself.
func (n *Namespace) Serve(t testing.TB, ports ...uint16) *Visits {
	t.Helper()
	v := &Visits{}
	for _, port := range ports {
		for _, family := range []string{"4", "6"} {
			n.Do(t, func() error { return serve(t, v, family, port) })
		}
	}
	return v
}

// serve listens by one family at a time: the net package finds out once per process whether a listener can have both,
// and may have asked inside a namespace without IPv6.
func serve(t testing.TB, v *Visits, family string, port uint16) error {
	var lc net.ListenConfig
	addr := ":" + strconv.Itoa(int(port))
	ln, err := lc.Listen(context.Background(), "tcp"+family, addr)
	if err != nil {
		return fmt.Errorf("service: %w", err)
	}
	pc, err := lc.ListenPacket(context.Background(), "udp"+family, addr)
	if err != nil {
		ln.Close()
		return fmt.Errorf("service: %w", err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { serveTCP(ln, v) })
	wg.Go(func() { serveUDP(pc, v) })
	t.Cleanup(func() {
		ln.Close()
		pc.Close()
		wg.Wait()
	})
	return nil
}

func serveTCP(ln net.Listener, v *Visits) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		v.add("tcp %s from %s", c.LocalAddr(), c.RemoteAddr())
		c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"))
		c.Close()
	}
}

func serveUDP(pc net.PacketConn, v *Visits) {
	buf := make([]byte, 2048)
	for {
		n, from, err := pc.ReadFrom(buf)
		if err != nil {
			return
		}
		v.add("udp %s from %s: %.60q", pc.LocalAddr(), from, buf[:n])
		pc.WriteTo(buf[:n], from)
	}
}
