package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/space-sandbox/space/api/proto/gateway/v1/gatewayv1connect"
	"github.com/space-sandbox/space/api/proto/node/v1/nodev1connect"
	"github.com/space-sandbox/space/client"
	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/rpc"
)

// readyLimit is how long the measured process may take to serve.
const readyLimit = 30 * time.Second

// controlRig is the measured process with its two fakes and its clients.
type controlRig struct {
	place  *place
	server *server
	client *client.Client
	visits *visits
	end    context.CancelFunc // of the fakes
	fakes  sync.WaitGroup
}

// startRig starts everything; on error nothing is left. End it with stop.
func startRig(ctx context.Context, p *place) (_ *controlRig, err error) {
	dir := dirOf(p.root, p.run)
	key := auth.NewKey()
	for _, err := range []error{os.Mkdir(dir.ControlDir(), 0o700), os.MkdirAll(dir.RunDir(), 0o700),
		os.WriteFile(dir.AdminHashFile(), []byte(auth.Hash(key).String()), 0o600)} {
		if err != nil {
			return nil, err
		}
	}
	serving, end := context.WithCancel(context.WithoutCancel(ctx))
	r := &controlRig{place: p, visits: newVisits(), end: end}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.stop())
		}
	}()
	mapped := connect.WithInterceptors(rpc.Errors())
	nodePath, node := nodev1connect.NewNodeServiceHandler(newFakeNode(r.visits), mapped)
	gatewayPath, gateway := gatewayv1connect.NewGatewayServiceHandler(&fakeGateway{visits: r.visits}, mapped)
	if err := r.serveFake(serving, dir.NodeSocket(), nodePath, node); err != nil {
		return nil, err
	}
	if err := r.serveFake(serving, dir.GatewaySocket(), gatewayPath, gateway); err != nil {
		return nil, err
	}
	api, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer api.Close()
	file, err := api.(*net.TCPListener).File()
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if r.server, err = startServer(p, file); err != nil {
		return nil, err
	}
	r.client = client.New("http://"+api.Addr().String(), string(key))
	r.client.HTTPClient = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	return r, r.awaitReady(ctx)
}

func (r *controlRig) serveFake(ctx context.Context, socket, path string, h http.Handler) error {
	l, err := rpc.Listen("unix", socket, -1)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle(path, h)
	r.fakes.Go(func() {
		if err := rpc.Serve(ctx, l, mux); err != nil && !errors.Is(err, http.ErrServerClosed) {
			fmt.Fprintln(os.Stderr, "control: a fake ended:", err)
		}
	})
	return nil
}

func (r *controlRig) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := r.client.Ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("the measured process is not ready: %w", err)
		}
	}
}

func (r *controlRig) stop() error {
	var err error
	if r.server != nil {
		err = r.server.stop()
	}
	r.end()
	r.fakes.Wait()
	return err
}

// commits reads how many writes of the store were made durable so far.
func (r *controlRig) commits(ctx context.Context) (float64, error) {
	text, err := r.client.Metrics(ctx)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "space_store_commits_total "); ok {
			var n float64
			_, err := fmt.Sscan(rest, &n)
			return n, err
		}
	}
	return 0, errors.New("/metrics does not have space_store_commits_total")
}
