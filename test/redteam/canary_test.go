package redteam_test

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/space-sandbox/space/test/redteam/finding"
)

// canary listens on one port of every address of this host, loopback included, by TCP and UDP. Nobody knows of it but
// the plan of an attack.
type canary struct {
	port uint16

	mu     sync.Mutex
	visits []string
}

func startCanary(t *testing.T) *canary {
	t.Helper()
	c := &canary{}
	var ln net.Listener
	var pc net.PacketConn
	for range 20 { // until a port is free in both
		var err error
		if ln, err = net.Listen("tcp", ":0"); err != nil {
			t.Fatal(err)
		}
		c.port = uint16(ln.Addr().(*net.TCPAddr).Port)
		if pc, err = net.ListenPacket("udp", fmt.Sprintf(":%d", c.port)); err == nil {
			break
		}
		ln.Close()
	}
	if pc == nil {
		t.Fatal("no port is free for a canary")
	}
	var wg sync.WaitGroup
	wg.Go(func() { c.tcp(ln) })
	wg.Go(func() { c.udp(pc) })
	t.Cleanup(func() {
		ln.Close()
		pc.Close()
		wg.Wait()
	})
	return c
}

func (c *canary) tcp(ln net.Listener) {
	for {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		c.note("tcp from %s", conn.RemoteAddr())
		conn.Close()
	}
}

func (c *canary) udp(pc net.PacketConn) {
	buf := make([]byte, 2048)
	for {
		n, from, err := pc.ReadFrom(buf)
		if err != nil {
			return
		}
		c.note("udp from %s: %q", from, buf[:min(n, 80)])
	}
}

func (c *canary) note(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.visits = append(c.visits, fmt.Sprintf(format, args...))
}

// wantNoGuest fails when anybody came: nobody else knows the port.
func (c *canary) wantNoGuest(t *testing.T, plan finding.Plan) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, v := range c.visits {
		who := "somebody"
		if strings.Contains(v, plan.GuestAddr.String()) {
			who = "the guest"
		}
		t.Errorf("%s reached the canary on port %d: %s", who, c.port, v)
	}
}
