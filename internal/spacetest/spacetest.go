// Package spacetest runs all three parts of an installation in one test process: control on a real store, the gateway
// and node with the fake driver, joined by the same protocols as in production over sockets in a temporary directory.
// Commands run on the host without isolation, as an unprivileged user when the test is root.
package spacetest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/space-sandbox/space/api/proto/gateway/v1/gatewayv1connect"
	"github.com/space-sandbox/space/api/proto/node/v1/nodev1connect"
	"github.com/space-sandbox/space/client"
	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/datadir"
	"github.com/space-sandbox/space/internal/fdpass"
	"github.com/space-sandbox/space/internal/gateway"
	"github.com/space-sandbox/space/internal/httpapi"
	"github.com/space-sandbox/space/internal/node"
	"github.com/space-sandbox/space/internal/node/ledger"
	"github.com/space-sandbox/space/internal/pool"
	"github.com/space-sandbox/space/internal/rpc"
	"github.com/space-sandbox/space/internal/sandbox"
	netfake "github.com/space-sandbox/space/internal/sandboxnet/fake"
	"github.com/space-sandbox/space/internal/store/sqlite"
	"github.com/space-sandbox/space/internal/telemetry"
	"github.com/space-sandbox/space/internal/transcript"
	"github.com/space-sandbox/space/internal/vmm"
	"github.com/space-sandbox/space/internal/vmm/fake"
)

// Installation is a running installation. Its methods are called from the test's goroutine.
type Installation struct {
	// Client calls the API with an admin key. It stays valid over restarts.
	Client *client.Client
	// Key is the admin key.
	Key string
	// Host has the fake machines, which outlive nodes.
	Host *fake.Host

	t       testing.TB
	dir     *datadir.Dir
	key     auth.Key
	control *server // API v1
	data    *server // data plane
	parts   map[string]*running
	log     *logBuffer
}

// running is a started part.
type running struct{ stop func() error }

// server is an address that survives restarts of the part behind it.
type server struct {
	http    *httptest.Server
	handler swap
}

const uidCount = 1 << 10

// uidBase draws a range of uids of this installation's own: the end of a machine ends whatever runs as its uid, and
// other installations of this and other test processes run at the same time.
func uidBase() uint32 { return 1<<29 + rand.Uint32N(1<<18)*uidCount }

// Start makes an installation with one template, tiny, and starts its parts. It ends with the test.
func Start(t testing.TB) *Installation {
	t.Helper()
	i := newInstallation(t)
	i.StartNode()
	i.StartGateway()
	i.StartControl()
	return i
}

func newInstallation(t testing.TB) *Installation {
	t.Helper()
	root, err := os.MkdirTemp("", "space") // sockets need a short path
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(root)) })
	must(t, os.Chmod(root, 0o711)) // fake machines run as another user below it
	uid := uint32(os.Getuid())
	i := &Installation{t: t, Host: fake.NewHost(), key: auth.NewKey(), parts: map[string]*running{}, log: &logBuffer{},
		dir: &datadir.Dir{Path: root, RunRoot: filepath.Join(root, "r"), Installation: datadir.Installation{ID: "test00",
			UIDBase: uidBase(), UIDCount: uidCount, ControlUID: uid, ControlGID: uint32(os.Getgid()), GatewayUID: uid, GatewayGID: uint32(os.Getgid()),
			PoolKind: string(pool.KindCopy)}}}
	t.Cleanup(i.Host.Close)
	for _, d := range []string{i.dir.PoolDir(), i.dir.ControlDir(), i.dir.NodeDir()} {
		must(t, os.Mkdir(d, 0o700))
	}
	must(t, os.MkdirAll(i.dir.RunDir(), 0o711))
	must(t, os.WriteFile(i.dir.AdminHashFile(), []byte(auth.Hash(i.key).String()), 0o600))
	i.installTemplate()
	i.control, i.data = newServer(t), newServer(t)
	i.Key = string(i.key)
	i.Client = client.New(i.control.http.URL, i.Key)
	return i
}

// installTemplate puts a small file where a root file system would be: the fake boots nothing.
func (i *Installation) installTemplate() {
	p, err := pool.OpenDir(i.dir)
	must(i.t, err)
	defer p.Close()
	st, err := p.NewStage("test")
	must(i.t, err)
	f, err := st.CreateRootfs()
	must(i.t, err)
	defer f.Close()
	content := make([]byte, 4096)
	_, err = f.Write(content)
	must(i.t, err)
	sum := sha256.Sum256(content)
	must(i.t, p.InstallTemplate(i.t.Context(), st, pool.Manifest{Digest: "sha256:" + hex.EncodeToString(sum[:]), Names: []string{"tiny:latest"},
		SizeBytes: int64(len(content)), MinDiskMiB: sandbox.MinDiskMiB, CreatedAt: time.Now().UTC()}))
}

// StartNode starts node; the one before must have been stopped.
func (i *Installation) StartNode() {
	i.t.Helper()
	p, err := pool.OpenDir(i.dir)
	must(i.t, err)
	network, err := netfake.New(netfake.Config{Dir: filepath.Join(i.dir.NodeDir(), "fakenet"),
		SocketPath: func(id sandbox.ID) string { return filepath.Join(i.dir.MachineRunDir(id), fake.AgentSocketName) }})
	must(i.t, err)
	driver, err := fake.New(fake.Config{AllowFake: true, Host: i.Host, TempDir: i.dir.Path, Logger: i.log.logger("node")})
	must(i.t, err)
	n, err := node.New(i.t.Context(), node.Deps{Dir: i.dir, Pool: p, Backends: []node.Backend{{Driver: driver, Network: network,
		Parts: ledger.Parts{Sockets: []string{fake.AgentSocketName}}}},
		DefaultDriver: driver.Name(), Probes: map[string]vmm.Probe{driver.Name(): driver.Probe(i.t.Context())}, Logger: i.log.logger("node"), BootID: "test"})
	must(i.t, err)
	rpcs, err := rpc.Listen("unix", i.dir.NodeSocket(), -1)
	must(i.t, err)
	fds, err := rpc.Listen("unixpacket", i.dir.FDSocket(), -1)
	must(i.t, err)
	passer := &fdpass.Server{Open: n.AgentSocket, AllowUID: uint32(os.Getuid()), Logger: i.log.logger("node")}
	i.run("node", []func(context.Context) error{
		func(ctx context.Context) error {
			return rpc.Serve(ctx, rpc.Restrict(rpcs, uint32(os.Getuid())), n.Handler())
		},
		func(ctx context.Context) error { return passer.Serve(ctx, fds) },
	}, n.Close, network.Close, p.Close)
}

// StartGateway starts the gateway.
func (i *Installation) StartGateway() {
	i.t.Helper()
	g := gateway.New(gateway.Deps{DialAgent: fdpass.Client{Path: i.dir.FDSocket()}.DialAgent, Logger: i.log.logger("gateway")})
	l, err := rpc.Listen("unix", i.dir.GatewaySocket(), -1)
	must(i.t, err)
	i.data.handler.set(g.DataHandler())
	i.run("gateway", []func(context.Context) error{
		func(ctx context.Context) error {
			return rpc.Serve(ctx, rpc.Restrict(l, uint32(os.Getuid())), g.ControlHandler())
		},
	}, func() error {
		i.data.handler.set(nil)
		g.Close()
		i.data.http.CloseClientConnections()
		return nil
	})
}

// StartControl starts control and waits until it is ready.
func (i *Installation) StartControl() {
	i.t.Helper()
	store, err := sqlite.Open(i.t.Context(), i.dir.StoreFile())
	must(i.t, err)
	signer, err := auth.LoadOrCreateSigner(i.dir.SigningKeyFile())
	must(i.t, err)
	nodeHTTP, gatewayHTTP := rpc.HTTPClient(rpc.DialUnix(i.dir.NodeSocket())), rpc.HTTPClient(rpc.DialUnix(i.dir.GatewaySocket()))
	mapped := connect.WithClientOptions(rpc.Plain(), connect.WithInterceptors(rpc.Errors(), telemetry.TraceCalls()))
	transcripts, err := transcript.Open(i.dir.TranscriptsDir(), transcript.Limits{})
	must(i.t, err)
	c, err := control.New(i.t.Context(), control.Deps{Store: store, Signer: signer, Logger: i.log.logger("control"), DataPlaneURL: i.data.http.URL,
		AdminHashFile: i.dir.AdminHashFile(), GatewayHTTP: gatewayHTTP, NodeHTTP: nodeHTTP, Transcripts: transcripts,
		Node:    nodev1connect.NewNodeServiceClient(nodeHTTP, rpc.BaseURL, mapped),
		Gateway: gatewayv1connect.NewGatewayServiceClient(gatewayHTTP, rpc.BaseURL, mapped)})
	must(i.t, err)
	h, err := httpapi.New(httpapi.Config{Control: c, Logger: i.log.logger("control"), Version: "test", DataPlaneURL: i.data.http.URL})
	must(i.t, err)
	i.control.handler.set(h)
	i.run("control", []func(context.Context) error{c.Run}, func() error {
		i.control.handler.set(nil)
		i.control.http.CloseClientConnections()
		return c.Close()
	}, store.Close, transcripts.Close, func() error {
		nodeHTTP.CloseIdleConnections()
		gatewayHTTP.CloseIdleConnections()
		return nil
	})
	i.awaitReady()
}

func (i *Installation) awaitReady() {
	i.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := i.Client.Ready(i.t.Context())
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-i.t.Context().Done():
			i.t.Fatalf("not ready: %v", err)
		}
	}
}

// Stop ends one part: control, gateway or node. The others and the machines go on.
func (i *Installation) Stop(part string) {
	i.t.Helper()
	p := i.parts[part]
	if p == nil {
		i.t.Fatalf("%s does not run", part)
	}
	delete(i.parts, part)
	must(i.t, p.stop())
}

// run serves until Stop or the end of the test, then calls the closers in order.
func (i *Installation) run(name string, serve []func(context.Context) error, closers ...func() error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(i.t.Context()))
	done := make(chan error, len(serve))
	for _, s := range serve {
		go func() { done <- s(ctx) }()
	}
	p := &running{}
	p.stop = func() error {
		cancel()
		var errs []error
		for range serve {
			if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
				errs = append(errs, err)
			}
		}
		for _, c := range closers {
			errs = append(errs, c())
		}
		return errors.Join(errs...)
	}
	i.parts[name] = p
	i.t.Cleanup(func() {
		if i.parts[name] == p {
			i.Stop(name)
		}
	})
}

func newServer(t testing.TB) *server {
	s := &server{}
	s.http = httptest.NewServer(&s.handler)
	t.Cleanup(s.http.Close)
	return s
}

// Left lists what is left of sandboxes on disk and in the host.
func (i *Installation) Left() []string {
	i.t.Helper()
	var left []string
	for _, dir := range []string{i.dir.MachinesDir(), filepath.Join(i.dir.PoolDir(), "sandboxes"), filepath.Join(i.dir.NodeDir(), "fakenet"), i.dir.RunDir() + "/vm"} {
		entries, err := os.ReadDir(dir)
		must(i.t, err)
		for _, e := range entries {
			left = append(left, filepath.Join(dir, e.Name()))
		}
	}
	return left
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
