package part

import (
	"context"
	"fmt"
	"log/slog"
	"net"

	"golang.org/x/sync/errgroup"

	"github.com/space-sandbox/space/internal/datadir"
	"github.com/space-sandbox/space/internal/fdpass"
	"github.com/space-sandbox/space/internal/gateway"
	"github.com/space-sandbox/space/internal/httpapi"
	"github.com/space-sandbox/space/internal/rpc"
)

// RunGateway serves control on gateway.sock and clients on the data plane until ctx is done. Inherited sockets: both,
// in this order.
func RunGateway(ctx context.Context, dir *datadir.Dir, logger *slog.Logger) error {
	control, err := unixListener(0)
	if err != nil {
		return err
	}
	data, err := listener(1)
	if err != nil {
		return err
	}
	g := gateway.New(gateway.Deps{DialAgent: fdpass.Client{Path: dir.FDSocket()}.DialAgent, Logger: logger})
	defer g.Close()
	stop := context.AfterFunc(ctx, g.Close) // streams end with "service restart", so that clients come back
	defer stop()
	clients := httpapi.NewServer(g.DataHandler(), logger)
	clients.BaseContext = func(net.Listener) context.Context { return context.WithoutCancel(ctx) }
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return rpc.Serve(ctx, rpc.Restrict(control, dir.Installation.ControlUID), g.ControlHandler())
	})
	group.Go(func() error { return serveHTTP(ctx, data, clients) })
	return group.Wait()
}

// unixListener takes the i-th passed socket, which is a unix one.
func unixListener(i int) (*net.UnixListener, error) {
	l, err := listener(i)
	if err != nil {
		return nil, err
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		return nil, fmt.Errorf("passed socket %d is no unix socket", i)
	}
	return u, nil
}
