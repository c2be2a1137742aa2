package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/space-sandbox/space/internal/doctor"
	"github.com/space-sandbox/space/internal/setup"
)

func newDoctorCmd(cli *cli) *cobra.Command {
	var listen, dataListen, bundle string
	var logs []string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this machine and the installation",
		Long: `Checks what SPACE needs: what was found, why that is so, what helps. Exit code 1 when something is missing; warnings are
fine.

With --bundle the results, versions, records of machines, operations, metrics and the ends of the logs named by --log
are put into a tar.gz for a bug report. Keys, tokens, environments, metadata and arguments of commands are taken out.`,
		Example: "  sudo space doctor\n  sudo space doctor --bundle report.tar.gz --log up.log",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), doctor.Deadline)
			defer cancel()
			host := setup.NewHost(version, newLogger(io.Discard, "doctor"))
			results := doctor.Run(ctx, doctor.Config{DataDir: cli.dataDirFlag, Ports: []string{listen, dataListen},
				CheckClaim: host.CheckClaim, Leftovers: host.Leftovers, Logger: newLogger(cmd.ErrOrStderr(), "doctor")})
			write := doctor.WriteText
			if wantsJSON(cmd) {
				write = doctor.WriteJSON
			}
			if err := write(cmd.OutOrStdout(), results); err != nil {
				return err
			}
			if bundle != "" {
				if err := writeBundle(cmd.Context(), cli, bundle, logs, results); err != nil {
					return err
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "space: %s is written; look through it before you send it\n", bundle)
			}
			if doctor.Failed(results) {
				return exitStatus(exitFailure) // what failed has been printed
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:7070", "address that space up would listen on")
	cmd.Flags().StringVar(&dataListen, "data-listen", "127.0.0.1:7071", "address of the data plane that space up would listen on")
	cmd.Flags().StringVar(&bundle, "bundle", "", "write what a bug report needs to this tar.gz, which must not exist")
	cmd.Flags().StringArrayVar(&logs, "log", nil, "add the end of this log file to the bundle (repeatable)")
	return cmd
}
