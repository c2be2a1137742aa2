package guest_test

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/space-sandbox/space/internal/guest"
	"github.com/space-sandbox/space/internal/rpc"
	"github.com/space-sandbox/space/internal/sandbox"
)

// pipes is a listener for connections within a process, whose time a test may hold.
type pipes struct{ conns chan net.Conn }

func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

// What looks at one place only must not wait as long as what walks a tree, for an agent that is alive and says nothing.
func TestSmallFileCallsEndSoon(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := pipes{make(chan net.Conn)}
		srv := &http.Server{Protocols: rpc.Protocols(), Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })}
		served := make(chan struct{})
		go func() { defer close(served); _ = srv.Serve(l) }()
		c := guest.NewClient(guest.Config{Token: token, Dial: func(context.Context) (net.Conn, error) {
			ours, theirs := net.Pipe()
			l.conns <- theirs
			return ours, nil
		}})
		q := url.Values{"path": {"/x"}}
		for name, call := range map[string]func() error{
			"stat":  func() error { _, err := c.StatFile(t.Context(), q); return err },
			"mkdir": func() error { _, err := c.MakeDirectory(t.Context(), q); return err },
			"move":  func() error { _, err := c.MoveFile(t.Context(), q); return err },
		} {
			began := time.Now()
			if err := call(); sandbox.CodeOf(err) != sandbox.CodeGuestNotReady || time.Since(began) > 30*time.Second {
				t.Errorf("%s: %v after %v", name, err, time.Since(began))
			}
		}
		c.Close()
		close(l.conns)
		srv.Close()
		<-served
	})
}
