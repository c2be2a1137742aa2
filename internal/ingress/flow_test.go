package ingress

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
)

// pipeListener accepts the other ends of net.Pipe: connections that buffer nothing, under a test's fake clock.
type pipeListener struct {
	conns chan net.Conn
	done  chan struct{}
}

func (l pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l pipeListener) Close() error   { return nil }
func (l pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

func (l pipeListener) dial(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	l.conns <- theirs
	return ours, nil
}

// servePipe serves p over pipes; call it in a synctest bubble.
func (p *plane) servePipe(t *testing.T) *http.Client {
	t.Helper()
	l := pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
	srv := p.httpServer()
	go srv.Serve(l)
	transport := &http.Transport{DialContext: l.dial}
	t.Cleanup(func() {
		p.end(ErrRestart)
		transport.CloseIdleConnections()
		close(l.done)
		srv.Close()
	})
	return &http.Client{Transport: transport}
}

func (p *plane) pipeAttach(t *testing.T, client *http.Client) *websocket.Conn {
	t.Helper()
	conn, _, err := websocket.Dial(t.Context(), "http://space/v1/attach/"+string(p.claims.CommandID), &websocket.DialOptions{
		HTTPClient: client, HTTPHeader: http.Header{"Authorization": {"Bearer " + p.token(t, nil)}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.CloseNow() })
	conn.SetReadLimit(maxFrameOut)
	return conn
}

// TestSlowClientHoldsTheAgentBack: what a client does not read stays with the agent, for hours if need be; not even
// pings that stay unanswered end that, as long as it reads a little now and then.
func TestSlowClientHoldsTheAgentBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const size = 8 << 20
		p := preparePlane(t, Limits{})
		p.claims.ExpiresAt = time.Now().Add(100 * time.Hour)
		p.guest.edit(func() { p.guest.out[stdout] = make([]byte, size) })
		p.guest.exit(0)
		conn := p.pipeAttach(t, p.servePipe(t))
		total := 0
		for {
			synctest.Wait()
			p.guest.mu.Lock()
			ahead := p.guest.read - total
			p.guest.mu.Unlock()
			if ahead > 256<<10 {
				t.Fatalf("%d bytes were taken from the agent that the client has not read", ahead)
			}
			_, frame, err := conn.Read(t.Context())
			if err != nil {
				if websocket.CloseStatus(err) != 4000 {
					t.Errorf("ended with %v", err)
				}
				break
			}
			if frame[0] == 1 {
				total += len(frame) - 1
			}
			if total < size {
				time.Sleep(2 * time.Minute) // of the fake clock
			}
		}
		if total != size {
			t.Errorf("got %d of %d bytes", total, size)
		}
	})
}

func TestSlowBodyHoldsTheAgentBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const size = 8 << 20
		p := preparePlane(t, Limits{})
		p.guest.edit(func() { p.guest.out[stdout] = make([]byte, size) })
		p.guest.exit(0)
		client := p.servePipe(t)
		req, err := http.NewRequestWithContext(t.Context(), "GET", "http://space/v1/commands/"+string(p.claims.CommandID)+"/output?follow=true", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+p.token(t, nil))
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		synctest.Wait()
		if p.guest.read > 256<<10 {
			t.Errorf("%d bytes were taken from the agent for a client that reads none", p.guest.read)
		}
		if n, err := io.Copy(io.Discard, resp.Body); err != nil || n != size {
			t.Errorf("read %d of %d bytes, %v", n, size, err)
		}
	})
}

func TestIdleClientIsCut(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		reads bool // a client that reads answers pings
		open  int
	}{"answers pings": {true, 1}, "is dead": {false, 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := preparePlane(t, Limits{})
				conn := p.pipeAttach(t, p.servePipe(t))
				if row.reads {
					go func() {
						for {
							if _, _, err := conn.Read(t.Context()); err != nil {
								return
							}
						}
					}()
				}
				time.Sleep(6 * time.Minute) // of the fake clock
				synctest.Wait()
				p.guest.mu.Lock()
				defer p.guest.mu.Unlock()
				if p.guest.streams != row.open {
					t.Errorf("%d streams are open after 6 minutes, want %d", p.guest.streams, row.open)
				}
			})
		})
	}
}

// TestInputThatWaitsIsNotIdle: the client's pongs stand behind input its process does not take.
func TestInputThatWaitsIsNotIdle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := preparePlane(t, Limits{})
		hold := make(chan struct{})
		p.guest.hold = hold
		conn := p.pipeAttach(t, p.servePipe(t))
		go func() {
			for {
				if _, _, err := conn.Read(t.Context()); err != nil {
					return
				}
			}
		}()
		sent := make(chan error, 1)
		go func() {
			sent <- conn.Write(t.Context(), websocket.MessageBinary, make([]byte, maxFrameIn))
		}()
		time.Sleep(time.Hour + time.Second) // of the fake clock
		close(hold)
		if err := <-sent; err != nil {
			t.Errorf("after an hour: %v", err)
		}
		synctest.Wait()
		p.guest.mu.Lock()
		defer p.guest.mu.Unlock()
		if got := p.guest.stdin.Len(); got != maxFrameIn-1 {
			t.Errorf("%d bytes came", got)
		}
	})
}

// TestLinger: a peer that is behind and still sends gets all that was written before the end.
func TestLinger(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const size = 512 << 10 // fits into socket buffers
	done := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			done <- err
			return
		}
		if _, err = c.Write(make([]byte, size)); err == nil {
			_, err = io.ReadFull(c, make([]byte, 1)) // the peer has sent: the rest of it lies unread at the end
		}
		linger := &lingerConn{Conn: c}
		linger.Close()
		linger.finish(10 * time.Second)
		done <- err
	}()
	c, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write(make([]byte, 64<<10)); err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, c); err != nil || n != size {
		t.Errorf("got %d of %d bytes, %v", n, size, err)
	}
	c.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
