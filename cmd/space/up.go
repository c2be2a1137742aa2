package main

import (
	"fmt"
	"io"
	"net/netip"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/space-sandbox/space/internal/datadir"
	"github.com/space-sandbox/space/internal/part"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/setup"
	"github.com/space-sandbox/space/internal/up"
)

func newUpCmd(dataDir func() string) *cobra.Command {
	cfg := up.Config{Executable: "/proc/self/exe"}
	var allow []string
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run SPACE in the foreground (root)",
		Long: `Runs the three parts of an installation and starts a part again when it ends. SIGTERM or Ctrl-C stops them and
leaves machines running: the next space up finds them again.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := part.CheckDriver(cfg.Driver); err != nil {
				return &usageError{err: err}
			}
			if err := requireRoot("space up"); err != nil {
				return err
			}
			var err error
			if cfg.RegistryAllow, err = prefixes("registry-allow", allow); err != nil {
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
	cmd.Flags().StringSliceVar(&allow, "registry-allow", nil, "private or local networks that images may be fetched from, such as 10.0.0.0/8")
	return cmd
}

// prefixes reads a list of networks.
func prefixes(flag string, list []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, text := range list {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, &sandbox.Error{Code: sandbox.CodeInvalidArgument, Message: "this is not a network", Cause: fmt.Sprintf("--%s %q: %v", flag, text, err),
				Remedy: "use a form like 10.0.0.0/8 or 127.0.0.1/32", Err: err}
		}
		out = append(out, p.Masked())
	}
	return out, nil
}
