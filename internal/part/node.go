package part

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"golang.org/x/sync/errgroup"

	"github.com/space-sandbox/space/internal/confine"
	"github.com/space-sandbox/space/internal/datadir"
	"github.com/space-sandbox/space/internal/fdpass"
	"github.com/space-sandbox/space/internal/guestos"
	"github.com/space-sandbox/space/internal/guestos/bootconf"
	"github.com/space-sandbox/space/internal/node"
	"github.com/space-sandbox/space/internal/pool"
	"github.com/space-sandbox/space/internal/rpc"
	"github.com/space-sandbox/space/internal/sandbox"
)

// RunNode serves control on node.sock and the gateway on fd.sock until ctx is done. Inherited sockets: both, in this
// order. driver is auto, or the only one that is enabled.
func RunNode(ctx context.Context, dir *datadir.Dir, driver string, logger *slog.Logger) error {
	control, err := unixListener(0)
	if err != nil {
		return err
	}
	fds, err := unixListener(1)
	if err != nil {
		return err
	}
	unlock, err := waitLock(ctx, dir.NodeDir()+"/lock") // the node of an earlier up may still be ending
	if err != nil {
		return err
	}
	defer unlock()
	n, closeParts, err := newNode(ctx, dir, logger, func(bootID string) (*backends, error) {
		return openBackends(ctx, dir, driver, bootID, logger)
	})
	if err != nil {
		return err
	}
	defer closeParts()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return rpc.Serve(ctx, rpc.Restrict(control, dir.Installation.ControlUID), n.Handler())
	})
	group.Go(func() error {
		s := &fdpass.Server{Open: n.AgentSocket, AllowUID: dir.Installation.GatewayUID, Logger: logger}
		return s.Serve(ctx, fds)
	})
	return errors.Join(group.Wait(), n.Close())
}

// newNode opens what a node is made of. The returned function closes it after the node.
func newNode(ctx context.Context, dir *datadir.Dir, logger *slog.Logger, open func(bootID string) (*backends, error)) (_ *node.Node, _ func(), err error) {
	var closers []func() error
	closeAll := func() {
		for _, c := range closers {
			if err := c(); err != nil {
				logger.Warn("close", "error", err)
			}
		}
	}
	defer func() {
		if err != nil {
			closeAll()
		}
	}()
	p, err := pool.OpenDir(dir)
	if err != nil {
		return nil, nil, err
	}
	closers = append(closers, p.Close)
	groups, err := confine.OpenGroups(dir.Installation.ID)
	if err != nil {
		return nil, nil, fmt.Errorf("control groups: %w", err)
	}
	bootID, err := confine.BootID()
	if err != nil {
		return nil, nil, err
	}
	b, err := open(bootID)
	if err != nil {
		return nil, nil, err
	}
	closers = append(closers, b.close)
	n, err := node.New(ctx, node.Deps{Dir: dir, Pool: p, Groups: groups, Backends: b.all, DefaultDriver: b.defaultName,
		Probes: b.probes, Worker: node.ConfinedWorker("/proc/self/exe"), Logger: logger, BootID: bootID,
		ReserveBytes: dir.Installation.PoolReserveMiB << 20})
	if err != nil {
		return nil, nil, err
	}
	return n, closeAll, nil
}

// guest gives machines the installed kernel and an initramfs with their boot configuration.
type guest struct{ assets *guestos.Assets }

func (g guest) Open(id sandbox.ID, agentToken string) (kernel, initrd *os.File, args string, err error) {
	if kernel, err = g.assets.OpenKernel(); err != nil {
		return nil, nil, "", err
	}
	initrd, err = g.assets.MachineInitrd(bootconf.Config{Token: agentToken, SandboxID: string(id)})
	if err != nil {
		return nil, nil, "", errors.Join(err, kernel.Close())
	}
	return kernel, initrd, guestos.KernelArgs(), nil
}
