package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/space-sandbox/space/internal/pool"
	"github.com/space-sandbox/space/internal/setup"
	"github.com/space-sandbox/space/internal/up"
)

func newSetupCmd(dataDir func() string) *cobra.Command {
	opts := setup.Options{}
	var noInstall bool
	var poolKind string
	var poolMiB int64
	cmd := &cobra.Command{
		Use:   "setup",
		Short: "Make this machine ready for SPACE (root)",
		Long: `Makes the data directory: packages, users, a range of uids, the pool, the guest's kernel and initramfs, templates and
the first key. It may be run again at any time and goes on where it was stopped.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			opts.DataDir, opts.Install = dataDir(), !noInstall
			opts.PoolKind, opts.PoolBytes = pool.Kind(poolKind), poolMiB<<20
			if poolKind == "auto" {
				opts.PoolKind = ""
			} else if _, err := pool.ParseKind(poolKind); err != nil {
				return &usageError{err: err}
			}
			if cmd.Flags().Changed("pool-size") && opts.PoolBytes < pool.MinImageBytes {
				return &usageError{err: fmt.Errorf("--pool-size %d: the smallest pool has %d MiB", poolMiB, pool.MinImageBytes>>20)}
			}
			logger := newLogger(io.Discard, "setup")
			res, err := setup.Run(ctx, opts, setup.NewHost(version, logger), newReporter(cmd), logger)
			if err != nil {
				return err
			}
			return printSetup(cmd, res)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&noInstall, "no-install", false, "do not install missing packages, name them")
	f.StringSliceVar(&opts.Templates, "templates", []string{"mini", "base"}, "templates to build")
	f.StringVar(&opts.AssetsDir, "assets", "", "directory made by space assets build: nothing is fetched then")
	f.StringVar(&poolKind, "pool", "auto", "auto, reflink, loop-xfs or copy")
	f.Int64Var(&poolMiB, "pool-size", 0, "size of a loop-xfs pool in MiB (default 60 % of the free space, at most 64 GiB)")
	f.BoolVar(&opts.PoolSparse, "pool-sparse", false, "do not reserve the space of a loop-xfs pool")
	return cmd
}

// newReporter shows progress on standard error: bars on a terminal only.
func newReporter(cmd *cobra.Command) setup.Reporter {
	return setup.NewReporter(cmd.ErrOrStderr(), onTerminal(cmd.ErrOrStderr()))
}

func printSetup(cmd *cobra.Command, res setup.Result) error {
	if _, running, err := up.Running(res.Dir); err == nil && running && res.NewKey {
		res.Warnings = append(res.Warnings, "space up runs and does not know the new key yet: stop and start it")
	}
	if wantsJSON(cmd) {
		return json.NewEncoder(cmd.OutOrStdout()).Encode(map[string]any{
			"data_dir": res.Dir.Path, "installation_id": res.Dir.Installation.ID, "pool": res.Dir.Installation.PoolKind,
			"admin_key_file": res.Dir.AdminKeyFile(), "warnings": append([]string{}, res.Warnings...)})
	}
	for _, w := range res.Warnings {
		fmt.Fprintln(cmd.ErrOrStderr(), "warning:", w)
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "ready: %s\nadmin key: %s\nstart it with: space up --data-dir %s\n",
		res.Dir.Path, res.Dir.AdminKeyFile(), res.Dir.Path)
	return err
}

// wantsJSON reports whether -o json was given.
func wantsJSON(cmd *cobra.Command) bool {
	format, err := cmd.Flags().GetString("output")
	return err == nil && format == "json"
}
