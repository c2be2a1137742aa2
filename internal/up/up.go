// Package up supervises the three parts of an installation in the foreground. It owns their sockets, so that a
// connection made while a part restarts waits instead of being refused, and a pipe (the lifeline) whose end tells the
// parts to stop, also when up itself is killed. Machines are nobody's children here: they outlive all of it.
package up

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/space-sandbox/space/internal/confine"
	"github.com/space-sandbox/space/internal/datadir"
	"github.com/space-sandbox/space/internal/part"
	"github.com/space-sandbox/space/internal/pool"
	"github.com/space-sandbox/space/internal/rpc"
	"github.com/space-sandbox/space/internal/sandbox"
)

// Config is what Run needs. All fields but RegistryAllow are required.
type Config struct {
	Dir        *datadir.Dir
	Listen     string // address of API v1
	DataListen string // address of the data plane
	Driver     string // auto, qemu, fake
	// RegistryAllow lists private or local addresses that images may be fetched from.
	RegistryAllow []netip.Prefix
	Executable    string // the space binary that the parts run
	Logger        *slog.Logger
	// Ready is called once, when the API first answers /readyz, with the addresses really listened on.
	Ready func(control, data string)
}

// Run supervises until ctx is done, then stops the parts and leaves machines running. The lock of the data directory
// is held all the while: a second Run names the holder. A part that cannot start before the first readiness ends Run with
// an error; once ready, Run goes on trying.
func Run(ctx context.Context, cfg Config) error {
	if err := keepOwn(); err != nil {
		return err
	}
	lock, err := acquireLock(cfg.Dir)
	if err != nil {
		return err
	}
	defer lock.release()
	if err := confine.JoinDaemons(); err != nil {
		return err
	}
	if err := pool.Ensure(ctx, cfg.Dir); err != nil {
		return err
	}
	s, err := openSockets(cfg)
	if err != nil {
		return err
	}
	defer s.close()
	control, data := s.controlTCP.addr, s.dataTCP.addr
	if err := lock.describe(control, data); err != nil {
		return err
	}
	lifeRead, lifeWrite, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("lifeline: %w", err)
	}
	defer lifeRead.Close()
	defer lifeWrite.Close()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var ready atomic.Bool
	hopeless := func(name string) {
		if !ready.Load() {
			stop(&sandbox.Error{Code: sandbox.CodeHostSetup, Message: "SPACE cannot start",
				Cause: "its part " + name + " has ended; the log has the reason", Remedy: "mend that, then start it again; space doctor helps"})
		}
	}
	var wg sync.WaitGroup
	for _, p := range parts(cfg, s, lifeRead, data) {
		wg.Go(func() { p.supervise(ctx, hopeless) })
	}
	wg.Go(func() { announce(ctx, cfg, control, data, &ready) })
	<-ctx.Done()
	lifeWrite.Close()
	wg.Wait()
	if se, ok := errors.AsType[*sandbox.Error](context.Cause(ctx)); ok {
		return se
	}
	return nil
}

// parts lists the three processes with their sockets in the order that package part expects.
func parts(cfg Config, s *sockets, life *os.File, dataAddr string) []*process {
	inst := cfg.Dir.Installation
	mk := func(name string, uid, gid uint32, files []*os.File, args ...string) *process {
		return &process{name: name, executable: cfg.Executable, uid: uid, gid: gid, logger: cfg.Logger.With("part", name),
			files: append([]*os.File{life}, files...),
			args:  append([]string{name, "--data-dir", cfg.Dir.Path}, args...)}
	}
	control := []string{"--data-url", "http://" + dataAddr}
	for _, p := range cfg.RegistryAllow {
		control = append(control, "--registry-allow", p.String())
	}
	return []*process{
		mk(part.Node, 0, 0, []*os.File{s.node.file, s.fd.file}, "--driver", cfg.Driver),
		mk(part.Gateway, inst.GatewayUID, inst.GatewayGID, []*os.File{s.gateway.file, s.dataTCP.file}),
		mk(part.Control, inst.ControlUID, inst.ControlGID, []*os.File{s.controlTCP.file}, control...),
	}
}

// announce calls Ready when the API answers that it is ready.
func announce(ctx context.Context, cfg Config, control, data string, ready *atomic.Bool) {
	client := &http.Client{Timeout: 5 * time.Second}
	defer client.CloseIdleConnections()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+control+"/readyz", nil)
		if err != nil {
			cfg.Logger.Error("readiness", "error", err)
			return
		}
		if res, err := client.Do(req); err == nil {
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				ready.Store(true)
				cfg.Ready(control, data)
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// socket is a listening socket kept open over restarts of the part that serves it.
type socket struct {
	file *os.File
	addr string
}

type sockets struct {
	node, fd, gateway, controlTCP, dataTCP socket
}

func (s *sockets) close() {
	for _, x := range []socket{s.node, s.fd, s.gateway, s.controlTCP, s.dataTCP} {
		if x.file != nil {
			x.file.Close()
		}
	}
}

// openSockets makes all five. On error none stays open.
func openSockets(cfg Config) (_ *sockets, err error) {
	d, inst := cfg.Dir, cfg.Dir.Installation
	if err := makeRunDir(d.RunDir()); err != nil {
		return nil, err
	}
	s := &sockets{}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.controlTCP, err = listenTCP("listen", cfg.Listen); err != nil {
		return nil, err
	}
	if s.dataTCP, err = listenTCP("data-listen", cfg.DataListen); err != nil {
		return nil, err
	}
	if s.node, err = listenUnix("unix", d.NodeSocket(), inst.ControlGID); err != nil {
		return nil, err
	}
	if s.fd, err = listenUnix("unixpacket", d.FDSocket(), inst.GatewayGID); err != nil {
		return nil, err
	}
	if s.gateway, err = listenUnix("unix", d.GatewaySocket(), inst.ControlGID); err != nil {
		return nil, err
	}
	return s, nil
}

// makeRunDir makes the directory of the sockets, which others may pass through but not read.
func makeRunDir(dir string) error {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	if err := os.Chmod(dir, 0o711); err != nil { //nolint:gosec // the parts are other users
		return fmt.Errorf("run directory: %w", err)
	}
	return nil
}

// listenTCP refuses anything but loopback: what lies beyond needs TLS and a decision, neither of which exists yet.
func listenTCP(flag, addr string) (socket, error) {
	ap, err := netip.ParseAddrPort(addr)
	if err != nil || !ap.Addr().IsLoopback() {
		return socket{}, &sandbox.Error{Code: sandbox.CodeInvalidArgument, Message: "this address is not allowed",
			Cause: fmt.Sprintf("--%s %q is not a loopback IP address with a port", flag, addr), Remedy: "use 127.0.0.1:PORT"}
	}
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(ap))
	if err != nil {
		return socket{}, &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "cannot listen", Cause: err.Error(),
			Remedy: "choose another --" + flag + ", or stop what uses the port", Err: err}
	}
	defer l.Close()
	f, err := l.File()
	if err != nil {
		return socket{}, fmt.Errorf("listener %s: %w", addr, err)
	}
	return socket{file: f, addr: l.Addr().String()}, nil
}

// listenUnix makes a socket for root and one group. The lock is held, so nobody serves the one that is replaced.
func listenUnix(network, path string, gid uint32) (socket, error) {
	l, err := rpc.Listen(network, path, int(gid))
	if err != nil {
		return socket{}, err
	}
	l.SetUnlinkOnClose(false)
	defer l.Close()
	f, err := l.File()
	if err != nil {
		return socket{}, fmt.Errorf("listener %s: %w", path, err)
	}
	return socket{file: f, addr: path}, nil
}
