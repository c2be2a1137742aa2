package part

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

func dial(t *testing.T, l net.Listener) net.Conn {
	t.Helper()
	var d net.Dialer
	c, err := d.DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestConnectionsAreLimited(t *testing.T) {
	t.Parallel()
	under, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := limit(under, 2)
	accepted := make(chan net.Conn)
	ended := make(chan error, 1)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				ended <- err
				return
			}
			accepted <- c
		}
	}()
	for range 3 {
		dial(t, l)
	}
	first, second := <-accepted, <-accepted
	defer second.Close()
	if _, ok := first.(interface{ CloseWrite() error }); !ok {
		t.Error("a TCP connection has lost CloseWrite")
	}
	select {
	case <-accepted:
		t.Error("a third connection was accepted")
	case <-time.After(50 * time.Millisecond):
	}
	first.Close()
	first.Close() // gives one place back, not two
	third := <-accepted
	defer third.Close()
	dial(t, l)
	select {
	case <-accepted:
		t.Error("a place was given back twice")
	case <-time.After(50 * time.Millisecond):
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept after Close: %v", err)
	}
}

// Clients that hold all connections do not keep the part from stopping.
func TestServeStops(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- serveHTTP(ctx, l, &http.Server{ReadHeaderTimeout: time.Minute,
			Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })})
	}()
	res, err := http.Get("http://" + l.Addr().String())
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%v %v", res, err)
	}
	res.Body.Close()
	dial(t, l)
	cancel()
	if err := <-done; err != nil {
		t.Errorf("serveHTTP: %v", err)
	}
}

// endless gives silent connections without end and tells when all places are taken, and when one more was asked for.
type endless struct {
	net.Listener
	asked int
	full  chan struct{}
	more  chan struct{}
}

func (e *endless) Accept() (net.Conn, error) {
	e.asked++
	switch e.asked {
	case maxConnections:
		defer close(e.full)
	case maxConnections + 1:
		close(e.more)
		return e.Listener.Accept()
	}
	ours, _ := net.Pipe()
	return ours, nil
}

// Whoever opens connections without end does not get more than there are places for.
func TestServeIsLimited(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &endless{Listener: l, full: make(chan struct{}), more: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- serveHTTP(ctx, e, &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.NotFoundHandler()})
	}()
	<-e.full
	select {
	case <-e.more:
		t.Errorf("more than %d connections", maxConnections)
	case <-time.After(100 * time.Millisecond):
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("serveHTTP: %v", err)
	}
}
