package part

import (
	"context"
	"net"
	"sync"
)

// maxConnections bounds the open connections of clients, far below the number of descriptors a process may have: who
// opens connections without end holds up other clients, but not what the process needs for itself.
const maxConnections = 4096

// limited accepts no more than a number of connections at once; more wait in the kernel.
type limited struct {
	net.Listener
	places chan struct{}
	closed context.Context
	close  context.CancelFunc
}

func limit(l net.Listener, n int) net.Listener {
	closed, cancel := context.WithCancel(context.Background())
	return &limited{Listener: l, places: make(chan struct{}, n), closed: closed, close: cancel}
}

// Accept waits for a place, then for a connection.
func (l *limited) Accept() (net.Conn, error) {
	select {
	case l.places <- struct{}{}:
	case <-l.closed.Done():
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.places
		return nil, err
	}
	release := sync.OnceFunc(func() { <-l.places })
	if tcp, ok := c.(*net.TCPConn); ok {
		return &placedTCP{TCPConn: tcp, release: release}, nil
	}
	return &placed{Conn: c, release: release}, nil
}

// Close wakes Accept too.
func (l *limited) Close() error {
	l.close()
	return l.Listener.Close()
}

type placed struct {
	net.Conn
	release func()
}

// Close gives the place back.
func (c *placed) Close() error {
	defer c.release()
	return c.Conn.Close()
}

// placedTCP keeps what only TCP connections can: CloseWrite, and copying within the kernel.
type placedTCP struct {
	*net.TCPConn
	release func()
}

// Close gives the place back.
func (c *placedTCP) Close() error {
	defer c.release()
	return c.TCPConn.Close()
}
