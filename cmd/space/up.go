package main

import (
	"io"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/space-sandbox/space/internal/datadir"
	"github.com/space-sandbox/space/internal/setup"
	"github.com/space-sandbox/space/internal/up"
)

func newUpCmd(dataDir func() string) *cobra.Command {
	cfg := up.Config{Executable: "/proc/self/exe"}
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run SPACE in the foreground (root)",
		Long: `Runs the three parts of an installation and starts a part again when it ends. SIGTERM or Ctrl-C stops them and
leaves machines running: the next space up finds them again.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := requireRoot("space up"); err != nil {
				return err
			}
			dir, err := datadir.Open(dataDir())
			if err != nil {
				return err
			}
			if err := setup.NewHost(version, newLogger(io.Discard, "up")).CheckClaim(dir); err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			cfg.Dir, cfg.Logger = dir, newLogger(cmd.ErrOrStderr(), "up")
			cfg.Ready = func(control, data string) {
				cfg.Logger.Info("ready", "listen", control, "data_listen", data, "authentication", developmentAuth)
			}
			return up.Run(ctx, cfg)
		},
	}
	cmd.Flags().StringVar(&cfg.Listen, "listen", "127.0.0.1:7070", "address of API v1 (loopback)")
	cmd.Flags().StringVar(&cfg.DataListen, "data-listen", "127.0.0.1:7071", "address of the data plane (loopback)")
	cmd.Flags().StringVar(&cfg.Driver, "driver", "auto", "auto, qemu or fake (fake: no isolation, needs SPACE_ALLOW_FAKE=1)")
	return cmd
}
