package fake

import (
	"net"
	"sync"
)

// gate holds up the connections of a paused machine. Safe for concurrent use.
type gate struct {
	mu   sync.Mutex
	pass chan struct{} // closed while the gate is open
}

func newGate() *gate {
	g := &gate{pass: make(chan struct{})}
	close(g.pass)
	return g
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.isOpen() {
		g.pass = make(chan struct{})
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.isOpen() {
		close(g.pass)
	}
}

// isOpen is for holders of mu.
func (g *gate) isOpen() bool {
	select {
	case <-g.pass:
		return true
	default:
		return false
	}
}

// wait returns when the gate is open (true) or closed is (false).
func (g *gate) wait(closed <-chan struct{}) bool {
	for {
		g.mu.Lock()
		pass, open := g.pass, g.isOpen()
		g.mu.Unlock()
		if open {
			return true
		}
		select {
		case <-pass:
		case <-closed:
			return false
		}
	}
}

// gatedListener gives connections that go through a gate.
type gatedListener struct {
	net.Listener
	gate *gate
}

// Accept implements net.Listener. As a guest's kernel does, it accepts in a pause too: nothing is answered.
func (l gatedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	closed := make(chan struct{})
	return &gatedConn{Conn: conn, gate: l.gate, closed: closed, shut: sync.OnceFunc(func() { close(closed) })}, nil
}

// gatedConn takes and gives no byte while the gate is shut; Close works always.
type gatedConn struct {
	net.Conn
	gate   *gate
	closed chan struct{}
	shut   func()
}

func (c *gatedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if !c.gate.wait(c.closed) { // what came in a pause is seen after it
		return 0, net.ErrClosed
	}
	return n, err
}

func (c *gatedConn) Write(p []byte) (int, error) {
	if !c.gate.wait(c.closed) {
		return 0, net.ErrClosed
	}
	return c.Conn.Write(p)
}

func (c *gatedConn) Close() error {
	c.shut()
	return c.Conn.Close()
}
