package main

import (
	"fmt"
	"io"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/space-sandbox/space/internal/setup"
)

func newAssetsCmd() *cobra.Command {
	var templates []string
	build := &cobra.Command{
		Use:   "build DIR",
		Short: "Make a bundle of kernel, initramfs and templates for space setup --assets (root)",
		Long: `Makes or completes a bundle: what is there and still right stays. A bundle lets setup run without a network.
It needs mmdebstrap and mke2fs.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			dir, err := filepath.Abs(args[0])
			if err != nil {
				return err
			}
			host := setup.NewHost(version, newLogger(io.Discard, "assets"))
			if err := setup.BuildAssets(ctx, dir, templates, host, newReporter(cmd)); err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), "ready:", dir)
			return err
		},
	}
	build.Flags().StringSliceVar(&templates, "templates", []string{"mini", "base"}, "templates to build")
	cmd := &cobra.Command{Use: "assets", Short: "Work with bundles for offline setups"}
	cmd.AddCommand(build)
	return cmd
}
