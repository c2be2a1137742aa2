package guest_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	connectrpc "connectrpc.com/connect"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/internal/guest"
	"github.com/space-sandbox/space/internal/rpc"
	"github.com/space-sandbox/space/internal/sandbox"
)

// serveHTTP serves h, h2c, until the test ends, and returns a client of it.
func serveHTTP(t *testing.T, h http.Handler) *guest.Client {
	t.Helper()
	l, path := listen(t)
	srv := &http.Server{Handler: h, Protocols: rpc.Protocols()}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	t.Cleanup(func() { srv.Close(); <-done })
	return connect(t, path, token)
}

// serveRaw hands each connection to f.
func serveRaw(t *testing.T, f func(net.Conn)) *guest.Client {
	t.Helper()
	l, path := listen(t)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer conn.Close(); f(conn) }()
		}
	}()
	return connect(t, path, token)
}

// calls is every way to talk to an agent.
func calls(c *guest.Client) map[string]func(context.Context) error {
	id := sandbox.ProcessID("proc_aaaaaaaaaaaaaaaaaaaa")
	return map[string]func(context.Context) error{
		"hello": func(ctx context.Context) error { _, err := c.Hello(ctx); return err },
		"get":   func(ctx context.Context) error { _, err := c.GetProcess(ctx, id); return err },
		"stdin": func(ctx context.Context) error {
			_, err := c.WriteStdin(ctx, &agentv1.WriteStdinRequest{ProcessId: string(id), Data: []byte("x")})
			return err
		},
		"watch": func(ctx context.Context) error {
			w, err := c.WatchProcesses(ctx)
			for err == nil {
				_, err = w.Receive()
			}
			return err
		},
		"attach": func(ctx context.Context) error {
			a, err := c.Attach(ctx, &agentv1.AttachRequest{ProcessId: string(id), Follow: true, Positions: outputs()})
			for err == nil {
				_, err = a.Receive()
			}
			return err
		},
		"get file": func(ctx context.Context) error {
			return drain(c.GetFile(ctx, url.Values{"path": {"/x"}}, ""))
		},
		"part of a file": func(ctx context.Context) error {
			return drain(c.GetFile(ctx, url.Values{"path": {"/x"}}, "bytes=0-9"))
		},
		"get archive": func(ctx context.Context) error { return drain(c.GetArchive(ctx, url.Values{"path": {"/x"}})) },
		"watch files": func(ctx context.Context) error {
			return drain(c.WatchFiles(ctx, url.Values{"path": {"/x"}}, true))
		},
		"stat": func(ctx context.Context) error { _, err := c.StatFile(ctx, url.Values{"path": {"/x"}}); return err },
		"list": func(ctx context.Context) error { _, err := c.ListFiles(ctx, url.Values{"path": {"/x"}}); return err },
		"mkdir": func(ctx context.Context) error {
			_, err := c.MakeDirectory(ctx, url.Values{"path": {"/x"}})
			return err
		},
		"move": func(ctx context.Context) error { _, err := c.MoveFile(ctx, url.Values{"path": {"/x"}}); return err },
		"unpack": func(ctx context.Context) error {
			_, err := c.PutArchive(ctx, url.Values{"path": {"/x"}}, strings.NewReader("x"), 1)
			return err
		},
		"put file": func(ctx context.Context) error {
			_, err := c.PutFile(ctx, url.Values{"path": {"/x"}}, strings.NewReader("x"), 1)
			return err
		},
	}
}

// drain reads a body to its end.
func drain(f *guest.File, err error) error {
	if err != nil {
		return err
	}
	defer f.Body.Close()
	_, err = io.Copy(io.Discard, f.Body)
	return err
}

// everyCallFails makes every call and wants each to fail with one of the codes, soon.
func everyCallFails(t *testing.T, c *guest.Client, codes ...sandbox.Code) {
	t.Helper()
	patience := 20 * time.Second
	if slices.Contains(codes, sandbox.CodeGuestNotReady) {
		patience = 300 * time.Millisecond
	}
	for name, call := range calls(c) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		begin := time.Now()
		err := call(ctx)
		cancel()
		if !slices.Contains(codes, sandbox.CodeOf(err)) {
			t.Errorf("%s: %q (%v), want one of %v", name, sandbox.CodeOf(err), err, codes)
		}
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("%s took %v", name, took)
		}
	}
}

// TestGarbage: what listens there speaks neither HTTP/2 nor, where a file's content is asked for, HTTP/1.1 to the end.
func TestGarbage(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]func(net.Conn){
		"closed":  func(net.Conn) {},
		"garbage": func(c net.Conn) { _, _ = c.Write([]byte(strings.Repeat("\xff\x00garbage", 10_000))) },
		"cut off": func(c net.Conn) { _, _ = c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello")) },
		"no end":  func(c net.Conn) { _, _ = c.Write([]byte("HTTP/1.1 200 OK\r\n\r\nhello")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			everyCallFails(t, serveRaw(t, f), sandbox.CodeUnavailable, sandbox.CodeGuestFault, sandbox.CodeGuestNotReady)
		})
	}
}

// TestSilence: it takes what it is sent and never answers, or answers a byte at a time.
func TestSilence(t *testing.T) {
	t.Parallel()
	mute := serveRaw(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	everyCallFails(t, mute, sandbox.CodeGuestNotReady)
	loris := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ticker := time.NewTicker(10 * time.Millisecond)
		defer ticker.Stop()
		rc := http.NewResponseController(w)
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		for {
			select {
			case <-ticker.C:
			case <-r.Context().Done():
				return
			}
			if _, err := w.Write([]byte{0}); err != nil || rc.Flush() != nil {
				return
			}
		}
	}))
	everyCallFails(t, loris, sandbox.CodeGuestNotReady, sandbox.CodeGuestFault)
}

// TestEndless: answers without an end, headers without an end, messages larger than any may be.
func TestEndless(t *testing.T) {
	t.Parallel()
	flood := func(prefix []byte) http.Handler {
		block := make([]byte, 64<<10)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
			_, _ = w.Write(prefix)
			for {
				if _, err := w.Write(block); err != nil {
					return
				}
			}
		})
	}
	t.Run("zeros", func(t *testing.T) {
		t.Parallel()
		everyCallFails(t, serveHTTP(t, flood(nil)), sandbox.CodeGuestFault, sandbox.CodeGuestNotReady)
	})
	t.Run("huge message", func(t *testing.T) {
		t.Parallel()
		everyCallFails(t, serveHTTP(t, flood([]byte{0, 0xff, 0xff, 0xff, 0xff})), sandbox.CodeGuestFault, sandbox.CodeGuestNotReady)
	})
	t.Run("headers", func(t *testing.T) {
		t.Parallel()
		c := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for i := range 200 {
				w.Header().Set("X-"+strings.Repeat("a", i), strings.Repeat("b", 1000))
			}
		}))
		everyCallFails(t, c, sandbox.CodeUnavailable, sandbox.CodeGuestFault)
	})
	t.Run("status", func(t *testing.T) {
		t.Parallel()
		for _, status := range []int{201, 204, 301, 302, 404, 418, 500, 503} {
			c := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Location", "http://192.0.2.1/")
				w.WriteHeader(status)
			}))
			everyCallFails(t, c, sandbox.CodeGuestFault, sandbox.CodeUnavailable)
		}
	})
}

// TestUnreadStreamIsBounded: an agent that sends as fast as it can is stopped by what is not read.
func TestUnreadStreamIsBounded(t *testing.T) {
	t.Parallel()
	var sent atomic.Int64
	id := "proc_aaaaaaaaaaaaaaaaaaaa"
	stalled, once := make(chan struct{}), sync.Once{}
	liar := &lyingAgent{attach: func(ctx context.Context, s *connectrpc.ServerStream[agentv1.AttachResponse]) error {
		if err := s.Send(started(id)); err != nil {
			return err
		}
		for offset := uint64(0); ; offset += 32 << 10 {
			timer := time.AfterFunc(500*time.Millisecond, func() { once.Do(func() { close(stalled) }) })
			if err := s.Send(data(offset, make([]byte, 32<<10))); err != nil {
				return err
			}
			timer.Stop()
			sent.Add(32 << 10)
		}
	}}
	c := serveLiar(t, liar)
	a, err := c.Attach(t.Context(), &agentv1.AttachRequest{ProcessId: id, Follow: true, Positions: outputs()})
	if err != nil {
		t.Fatal(err)
	}
	<-stalled
	if n := sent.Load(); n > 4<<20 {
		t.Errorf("%d bytes were taken and not read", n)
	}
	a.Close()
	if _, err := a.Receive(); err == nil {
		_, err = a.Receive()
		for err == nil {
			_, err = a.Receive()
		}
		wantCode(t, err, sandbox.CodeUnavailable)
	}
}
