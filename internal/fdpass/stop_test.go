package fdpass

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/space-sandbox/space/internal/rpc"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/sandboxnet"
)

// Clients that connect and ask nothing, more than are served at once, do not keep the server from ending.
func TestEndsBesideIdleClients(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "fd.sock")
	l, err := rpc.Listen("unixpacket", path, -1)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := &Server{AllowUID: uint32(os.Getuid()), Logger: slog.New(slog.DiscardHandler),
		Open: func(context.Context, sandbox.ID) (sandboxnet.AgentSocket, error) { panic("nobody asked") }}
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	for range maxExchanges + 8 {
		c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	began := time.Now()
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Serve: %v", err)
	}
	if took := time.Since(began); took > exchangeTimeout/2 {
		t.Errorf("it took %v to end", took)
	}
}
