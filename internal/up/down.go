package up

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/space-sandbox/space/internal/part"
	"github.com/space-sandbox/space/internal/pool"
)

// readyTimeout is how long Down waits for an installation it starts itself.
const readyTimeout = 60 * time.Second

// Down removes every sandbox and kernel object of an installation, and stops the up that runs it. The data directory
// stays: keys, store and templates. deleteAll deletes all sandboxes through the API at a base URL, so that the records
// agree; when the API cannot be had, machines are removed all the same and the records follow at the next start.
func Down(ctx context.Context, cfg Config, deleteAll func(ctx context.Context, baseURL string) error) error {
	recordErr := throughAPI(ctx, cfg, deleteAll)
	if recordErr != nil {
		cfg.Logger.Warn("sandboxes could not be deleted through the API; removing their machines", "error", recordErr)
	}
	if err := Stop(cfg.Dir); err != nil {
		return err
	}
	lock, err := acquireLock(cfg.Dir)
	if err != nil {
		return err
	}
	defer lock.release()
	if err := pool.Ensure(ctx, cfg.Dir); err != nil {
		cfg.Logger.Warn("the pool cannot be mounted; removing machines without it", "error", err)
		return clearKernel(ctx, cfg)
	}
	if err := makeRunDir(cfg.Dir.RunDir()); err != nil {
		return err
	}
	if err := part.Sweep(ctx, cfg.Dir, cfg.Driver, cfg.Logger); err != nil {
		return fmt.Errorf("remove machines: %w", err)
	}
	return errors.Join(pool.Unmount(ctx, cfg.Dir), os.RemoveAll(cfg.Dir.RunDir()))
}

// throughAPI calls deleteAll on the running installation, or on one that it starts on free ports for the purpose.
func throughAPI(ctx context.Context, cfg Config, deleteAll func(context.Context, string) error) error {
	holder, running, err := Running(cfg.Dir)
	if err != nil {
		return err
	}
	if running {
		return deleteAll(ctx, "http://"+holder.Listen)
	}
	run, stop := context.WithCancel(ctx)
	defer stop()
	ready := make(chan string, 1)
	cfg.Listen, cfg.DataListen = "127.0.0.1:0", "127.0.0.1:0"
	cfg.Ready = func(control, _ string) { ready <- control }
	ended := make(chan error, 1)
	go func() { ended <- Run(run, cfg) }()
	select {
	case addr := <-ready:
		err = deleteAll(ctx, "http://"+addr)
	case err = <-ended:
		return err
	case <-time.After(readyTimeout):
		err = fmt.Errorf("the installation did not become ready within %v", readyTimeout)
	case <-ctx.Done():
		err = ctx.Err()
	}
	stop()
	return errors.Join(err, <-ended)
}
