package part

import (
	"context"
	"errors"
	"log/slog"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"

	"github.com/space-sandbox/space/api/proto/gateway/v1/gatewayv1connect"
	"github.com/space-sandbox/space/api/proto/node/v1/nodev1connect"
	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/datadir"
	"github.com/space-sandbox/space/internal/httpapi"
	"github.com/space-sandbox/space/internal/rpc"
	"github.com/space-sandbox/space/internal/store/sqlite"
)

// ControlConfig is what RunControl needs.
type ControlConfig struct {
	Dir     *datadir.Dir
	DataURL string // base URL of the data plane
	Version string
	Warning string // about authentication; shown by /v1/node
	Logger  *slog.Logger
}

// RunControl serves API v1 until ctx is done. Inherited socket: the API's.
func RunControl(ctx context.Context, cfg ControlConfig) (err error) {
	api, err := listener(0)
	if err != nil {
		return err
	}
	dir := cfg.Dir
	unlock, err := waitLock(ctx, dir.ControlDir()+"/lock") // the control of an earlier up may still be ending
	if err != nil {
		return err
	}
	defer unlock()
	store, err := sqlite.Open(ctx, dir.StoreFile())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	signer, err := auth.LoadOrCreateSigner(dir.SigningKeyFile())
	if err != nil {
		return err
	}
	nodeHTTP, gatewayHTTP := rpc.HTTPClient(rpc.DialUnix(dir.NodeSocket())), rpc.HTTPClient(rpc.DialUnix(dir.GatewaySocket()))
	defer nodeHTTP.CloseIdleConnections()
	defer gatewayHTTP.CloseIdleConnections()
	mapped := connect.WithInterceptors(rpc.Errors())
	c, err := control.New(ctx, control.Deps{
		Store: store, Signer: signer, Logger: cfg.Logger, DataPlaneURL: cfg.DataURL, AdminHashFile: dir.AdminHashFile(),
		Node:        nodev1connect.NewNodeServiceClient(nodeHTTP, rpc.BaseURL, mapped),
		Gateway:     gatewayv1connect.NewGatewayServiceClient(gatewayHTTP, rpc.BaseURL, mapped),
		GatewayHTTP: gatewayHTTP,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	handler, err := httpapi.New(httpapi.Config{Control: c, Logger: cfg.Logger, Version: cfg.Version, DataPlaneURL: cfg.DataURL, DevAuthWarning: cfg.Warning})
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.Run(ctx) })
	group.Go(func() error { return serveHTTP(ctx, api, httpapi.NewServer(handler, cfg.Logger)) })
	return group.Wait()
}
