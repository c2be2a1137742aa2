package main

import (
	"github.com/spf13/cobra"

	"github.com/space-sandbox/space/internal/part"
)

// newNodePart is the process node that space up starts; its subcommands are for people.
func newNodePart(dataDir func() string, driver *string) *cobra.Command {
	cmd := &cobra.Command{Use: part.Node, Short: "Show the machine SPACE runs on", Args: cobra.NoArgs,
		Long: "The process node of an installation is started by space up; space node info shows what it knows of the machine.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !part.Started() {
				return cmd.Help()
			}
			return runPart(cmd, part.Node, dataDir(), func(p partContext) error {
				return part.RunNode(p.ctx, p.dir, *driver, p.logger)
			})
		}}
	cmd.Flags().StringVar(driver, "driver", "auto", "")
	_ = cmd.Flags().MarkHidden("driver") // for space up alone; an error would mean that there is no such flag
	return cmd
}
