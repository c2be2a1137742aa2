package part

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"

	"github.com/space-sandbox/space/api/proto/gateway/v1/gatewayv1connect"
	"github.com/space-sandbox/space/api/proto/node/v1/nodev1connect"
	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/datadir"
	"github.com/space-sandbox/space/internal/httpapi"
	"github.com/space-sandbox/space/internal/registry"
	"github.com/space-sandbox/space/internal/rpc"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store/sqlite"
	"github.com/space-sandbox/space/internal/telemetry"
	"github.com/space-sandbox/space/internal/transcript"
)

// ControlConfig is what RunControl needs.
type ControlConfig struct {
	Dir     *datadir.Dir
	DataURL string // base URL of the data plane
	Version string
	Warning string // about authentication; shown by /v1/node
	// RegistryAllow lists private or local addresses that images may be fetched from.
	RegistryAllow []netip.Prefix
	Logger        *slog.Logger
}

// maxAnswerBytes bounds one message of node or the gateway; the largest lists every machine with its last words.
const maxAnswerBytes = 64 << 20

// RunControl serves API v1 until ctx is done. Inherited socket: the API's.
func RunControl(ctx context.Context, cfg ControlConfig) (err error) {
	api, err := listener(0)
	if err != nil {
		return err
	}
	dir := cfg.Dir
	unlock, err := waitLock(ctx, dir.ControlDir()+"/lock") // the control of an earlier up may still be ending
	if err != nil {
		return ownFile(dir, err)
	}
	defer unlock()
	store, err := sqlite.Open(ctx, dir.StoreFile())
	if err != nil {
		return ownFile(dir, err)
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	signer, err := auth.LoadOrCreateSigner(dir.SigningKeyFile())
	if err != nil {
		return ownFile(dir, err)
	}
	nodeHTTP, gatewayHTTP := rpc.HTTPClient(rpc.DialUnix(dir.NodeSocket())), rpc.HTTPClient(rpc.DialUnix(dir.GatewaySocket()))
	defer nodeHTTP.CloseIdleConnections()
	defer gatewayHTTP.CloseIdleConnections()
	mapped := connect.WithClientOptions(rpc.Plain(), connect.WithInterceptors(rpc.Errors(), telemetry.TraceCalls()), connect.WithReadMaxBytes(maxAnswerBytes))
	transcripts, err := transcript.Open(dir.TranscriptsDir(), transcript.Limits{})
	if err != nil {
		return ownFile(dir, err)
	}
	defer func() { err = errors.Join(err, transcripts.Close()) }()
	images := registry.New(registry.Config{Allow: cfg.RegistryAllow})
	defer images.Close()
	c, err := control.New(ctx, control.Deps{
		Store: store, Signer: signer, Logger: cfg.Logger, DataPlaneURL: cfg.DataURL, AdminHashFile: dir.AdminHashFile(),
		Node:        nodev1connect.NewNodeServiceClient(nodeHTTP, rpc.BaseURL, mapped),
		Gateway:     gatewayv1connect.NewGatewayServiceClient(gatewayHTTP, rpc.BaseURL, mapped),
		GatewayHTTP: gatewayHTTP, NodeHTTP: nodeHTTP, Transcripts: transcripts,
		Images: images, ImportDir: dir.ControlDir(),
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

// ownFile gives an error about a file of control, which runs as a user of its own, its remedy.
func ownFile(dir *datadir.Dir, err error) error {
	remedy := "run: space setup --data-dir " + dir.Path
	switch {
	case errors.Is(err, fs.ErrPermission):
		remedy = fmt.Sprintf("its files belong to that user: chown -R %d:%d %s", dir.Installation.ControlUID, dir.Installation.ControlGID, dir.ControlDir())
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "control cannot use its files", Cause: err.Error(), Remedy: remedy, Err: err}
}
