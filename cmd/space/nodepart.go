package main

import (
	"github.com/spf13/cobra"

	"github.com/space-sandbox/space/internal/part"
)

// newNodeCmd is the process node that space up starts; its subcommands are for people.
func newNodePart(dataDir func() string, driver *string) *cobra.Command {
	cmd := &cobra.Command{Use: part.Node, Short: "Show the machine SPACE runs on", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runPart(cmd, part.Node, dataDir(), func(p partContext) error {
				return part.RunNode(p.ctx, p.dir, *driver, p.logger)
			})
		}}
	cmd.Flags().StringVar(driver, "driver", "auto", "")
	return cmd
}
