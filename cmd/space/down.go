package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/space-sandbox/space/client"
	"github.com/space-sandbox/space/internal/datadir"
	"github.com/space-sandbox/space/internal/part"
	"github.com/space-sandbox/space/internal/pool"
	"github.com/space-sandbox/space/internal/setup"
	"github.com/space-sandbox/space/internal/up"
)

func newDownCmd(dataDir func() string) *cobra.Command {
	var all bool
	cfg := up.Config{Executable: "/proc/self/exe"}
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Stop SPACE; with --all remove every sandbox and kernel object (root)",
		Long: `Stops the space up that runs on the data directory; machines go on. With --all every sandbox is deleted and every
kernel object of the installation removed, whether or not space up runs. Keys, store and templates stay.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := part.CheckDriver(cfg.Driver); err != nil {
				return &usageError{err: err}
			}
			if err := requireRoot("space down"); err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			cfg.Logger = newLogger(cmd.ErrOrStderr(), "down")
			dir, err := datadir.Open(dataDir())
			if err != nil && all {
				return clearLost(ctx, cfg, dataDir(), err)
			}
			if err != nil {
				return err
			}
			if !all {
				return up.Stop(dir)
			}
			cfg.Dir = dir
			return up.Down(ctx, cfg, func(ctx context.Context, baseURL string) error { return deleteAll(ctx, baseURL, dir) })
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "delete every sandbox and remove every kernel object")
	cmd.Flags().StringVar(&cfg.Driver, "driver", "auto", "the driver that space up was started with")
	return cmd
}

// clearLost takes down what runs from a data directory that cannot be opened because of openErr.
func clearLost(ctx context.Context, cfg up.Config, path string, openErr error) error {
	abs, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	in, found, err := setup.NewHost(version, cfg.Logger).Claimed(abs)
	if err != nil {
		return err
	}
	if !found {
		lost := &datadir.Dir{Path: abs}
		if pool.CheckOrphan(lost.PoolDir()) == nil {
			return openErr
		}
		return pool.UnmountOrphan(lost.PoolDir()) // all that an unfinished setup can have left
	}
	release, err := setup.Busy(abs)
	if err != nil {
		return err
	}
	defer release()
	cfg.Logger.Info("the data directory cannot be used; removing what runs from it", "reason", openErr)
	cfg.Dir = &datadir.Dir{Path: abs, Installation: in}
	return up.Clear(ctx, cfg)
}

// deletePatience bounds the deletion of one sandbox; what is not gone by then is removed without the API.
const deletePatience = 60 * time.Second

// deleteAll deletes all sandboxes through the API.
func deleteAll(ctx context.Context, baseURL string, dir *datadir.Dir) error {
	key, err := os.ReadFile(dir.AdminKeyFile())
	if err != nil {
		return fmt.Errorf("admin key: %w", err)
	}
	c := client.New(baseURL, strings.TrimSpace(string(key)))
	for {
		list, err := c.ListSandboxes(ctx, client.SandboxQuery{})
		if err != nil {
			return err
		}
		if len(list.Items) == 0 {
			return nil
		}
		for _, s := range list.Items {
			res, err := c.DeleteSandbox(ctx, s.ID, client.Wait(deletePatience))
			if err != nil && !client.IsNotFound(err) {
				return fmt.Errorf("delete %s: %w", s.ID, err)
			}
			if err == nil && res.Operation.State != "succeeded" {
				return fmt.Errorf("delete %s: the operation is still %s", s.ID, res.Operation.State)
			}
		}
	}
}
