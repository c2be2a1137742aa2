package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

func newRmCmd(cli *cli) *cobra.Command {
	var wait bool
	cmd := &cobra.Command{
		Use:   "rm SANDBOX...",
		Short: "Delete sandboxes",
		Long:  "Deletes sandboxes, in whatever state they are, and prints each one that was accepted (with --wait: that is gone).",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c := cli.client()
			return every(args, func(ref string) error {
				gone, err := c.DeleteSandbox(cmd.Context(), ref)
				if err == nil && wait {
					gone, err = settle(cmd.Context(), cli, c, gone)
				}
				if err != nil {
					return err
				}
				if cli.json() {
					return cli.printJSON(gone)
				}
				_, err = fmt.Fprintln(cli.out, ref)
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until they are gone")
	return cmd
}
