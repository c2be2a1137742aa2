package ingress

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// lingerWriter hands out the connection of an upgraded request wrapped in a lingerConn.
type lingerWriter struct {
	http.ResponseWriter
	conn *lingerConn
}

// Hijack implements http.Hijacker.
func (w *lingerWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	w.conn = &lingerConn{Conn: conn}
	return w.conn, rw, nil
}

// lingerConn is a connection whose Close only wakes who waits on it. The socket itself is closed by finish: a socket
// closed while the peer still sends (a pong, the rest of its input) is reset by the kernel, and what the peer has not
// yet received, such as the exit frame, would be lost.
type lingerConn struct {
	net.Conn
	once sync.Once
}

// Close ends reads and writes; the socket stays open until finish.
func (c *lingerConn) Close() error {
	err := net.ErrClosed
	c.once.Do(func() { err = c.Conn.SetDeadline(time.Unix(1, 0)) })
	return err
}

// finish closes the socket. With linger it first says that nothing more comes and gives the peer that long to read
// what is under way and to close its side. Nobody else may use the connection any more.
func (c *lingerConn) finish(linger time.Duration) {
	defer c.Conn.Close()
	if linger <= 0 {
		return
	}
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok {
		return
	}
	err := errors.Join(c.Conn.SetDeadline(time.Now().Add(linger)), half.CloseWrite())
	if err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, c.Conn) // ends with the peer's close, its reset or the deadline
}
