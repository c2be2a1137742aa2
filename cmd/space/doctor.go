package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/space-sandbox/space/internal/doctor"
	"github.com/space-sandbox/space/internal/setup"
)

func newDoctorCmd(dataDir func() string) *cobra.Command {
	var listen, dataListen string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this machine and the installation",
		Long:  "Checks what SPACE needs: what was found, why that is so, what helps. Exit code 1 when something is missing; warnings are fine.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), doctor.Deadline)
			defer cancel()
			results := doctor.Run(ctx, doctor.Config{DataDir: dataDir(), Ports: []string{listen, dataListen},
				CheckClaim: setup.NewHost(version, newLogger(io.Discard, "doctor")).CheckClaim, Logger: newLogger(cmd.ErrOrStderr(), "doctor")})
			write := doctor.WriteText
			if wantsJSON(cmd) {
				write = doctor.WriteJSON
			}
			if err := write(cmd.OutOrStdout(), results); err != nil {
				return err
			}
			if doctor.Failed(results) {
				return exitStatus(exitFailure) // what failed has been printed
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:7070", "address that space up would listen on")
	cmd.Flags().StringVar(&dataListen, "data-listen", "127.0.0.1:7071", "address of the data plane that space up would listen on")
	return cmd
}
