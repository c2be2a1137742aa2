package guest_test

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/internal/guest"
	"github.com/space-sandbox/space/internal/rpc"
	"github.com/space-sandbox/space/internal/sandbox"
)

// frame is one HTTP/2 frame on stream 0.
func frame(kind, flags byte, payload []byte) []byte {
	out := binary.BigEndian.AppendUint32(nil, uint32(len(payload))<<8|uint32(kind))
	out = append(out, flags, 0, 0, 0, 0)
	return append(out, payload...)
}

// setting is a SETTINGS frame with one value.
func setting(id uint16, value uint32) []byte {
	return frame(4, 0, binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(nil, id), value))
}

// TestNoStreamsAllowed: an agent that allows no streams on its connections gets a bounded number of them, whatever is
// asked of it.
func TestNoStreamsAllowed(t *testing.T) {
	t.Parallel()
	var open, most atomic.Int64
	c := serveRaw(t, func(conn net.Conn) {
		n := open.Add(1)
		defer open.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		const maxConcurrentStreams = 3
		if _, err := conn.Write(append(setting(maxConcurrentStreams, 0), frame(4, 1, nil)...)); err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, conn)
	})
	for range 4 {
		var wg sync.WaitGroup
		for range 200 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
				defer cancel()
				if _, err := c.Hello(ctx); err == nil {
					t.Error("an answer over a connection without streams")
				}
			})
		}
		wg.Wait()
	}
	if n := most.Load(); n > 96 {
		t.Errorf("%d connections to one guest", n)
	}
}

// TestNothingIsRead: an agent that sends, and reads nothing, loses its connection, and what waits on it ends.
func TestNothingIsRead(t *testing.T) {
	t.Parallel()
	gone := make(chan struct{}, 16)
	l, path := listen(t)
	go func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			go func() { defer conn.Close(); seemAlive(t.Context(), conn); gone <- struct{}{} }()
		}
	}()
	c := guest.NewClient(guest.Config{Dial: rpc.DialUnix(path), Token: token, WriteTimeout: 500 * time.Millisecond})
	t.Cleanup(c.Close)
	for name, send := range map[string]func() error{
		"file": func() error {
			_, err := c.PutFile(t.Context(), nil, endless{}, -1)
			return err
		},
		"calls": func() error { return fillCalls(t.Context(), c) },
	} {
		t.Run(name, func(t *testing.T) {
			sent := make(chan error, 1)
			go func() { sent <- send() }()
			select {
			case err := <-sent:
				if code := sandbox.CodeOf(err); code != sandbox.CodeUnavailable && code != sandbox.CodeGuestNotReady {
					t.Errorf("what nobody reads: %q %v", code, err)
				}
				<-gone
			case <-time.After(20 * time.Second):
				t.Error("the connection is still there")
			}
		})
	}
}

// fillCalls makes calls side by side, more than a socket holds, and returns the error of the first one that ends.
func fillCalls(ctx context.Context, c *guest.Client) error {
	ended := make(chan error, 64)
	for range cap(ended) {
		go func() {
			_, err := c.WriteStdin(ctx, &agentv1.WriteStdinRequest{ProcessId: string(sandbox.NewProcessID()), Data: make([]byte, 64<<10)})
			ended <- err
		}()
	}
	return <-ended
}

// seemAlive opens all windows of HTTP/2, then sends and never reads.
func seemAlive(ctx context.Context, conn net.Conn) {
	const initialWindow, windowUpdate = 4, 8
	hello := append(setting(initialWindow, 1<<30), frame(4, 1, nil)...)
	if _, err := conn.Write(append(hello, frame(windowUpdate, 0, []byte{0x3f, 0xff, 0, 0})...)); err != nil {
		return
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if _, err := conn.Write(frame(windowUpdate, 0, []byte{0, 0, 0, 1})); err != nil {
			return
		}
	}
}

// endless is a body without an end.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// TestSilentAgent: contents on their way end when the agent answers nothing any more, though its kernel still takes bytes.
func TestSilentAgent(t *testing.T) {
	t.Parallel()
	l, path := listen(t)
	go func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			go func() {
				defer conn.Close()
				first := make([]byte, 4)
				if _, err := io.ReadFull(conn, first); err != nil {
					return
				}
				if string(first) == "GET " { // the beginning of a content, and no more
					_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n12345")
				}
				_, _ = io.Copy(io.Discard, conn)
			}()
		}
	}()
	c := guest.NewClient(guest.Config{Dial: rpc.DialUnix(path), Token: token, PingAfter: 200 * time.Millisecond})
	t.Cleanup(c.Close)
	for name, call := range map[string]func() error{
		"put": func() error {
			_, err := c.PutFile(t.Context(), nil, strings.NewReader("content"), 7)
			return err
		},
		"get": func() error {
			f, err := c.GetFile(t.Context(), nil, "")
			if err != nil {
				return err
			}
			defer f.Body.Close()
			_, err = io.Copy(io.Discard, f.Body)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ended := make(chan error, 1)
			go func() { ended <- call() }()
			select {
			case err := <-ended:
				if code := sandbox.CodeOf(err); code != sandbox.CodeGuestNotReady {
					t.Errorf("%q %v", code, err)
				}
			case <-time.After(20 * time.Second):
				t.Error("it goes on")
			}
		})
	}
}
