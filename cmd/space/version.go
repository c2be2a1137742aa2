package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

func newVersionCmd(cli *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if cli.json() {
				return cli.printJSON(map[string]string{"version": version, "go": runtime.Version()})
			}
			_, err := fmt.Fprintf(cli.out, "space %s\n", version)
			return err
		},
	}
}
