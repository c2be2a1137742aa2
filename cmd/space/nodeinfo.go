package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	apiv1 "github.com/space-sandbox/space/api/v1"
)

func newNodeInfoCmd(cli *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "info",
		Short: "Show the machine SPACE runs on (needs an admin key)",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			n, err := cli.client().Node(cmd.Context())
			return answer(cli, n, err, printNode)
		},
	}
}

func printNode(cli *cli, n *apiv1.Node) error {
	lines := [][2]string{
		{"installation", n.InstallationID}, {"version", n.Version}, {"kernel", n.Kernel},
		{"cpus", fmt.Sprint(n.Capacity.CPUs)},
		{"memory", fmt.Sprintf("%d MiB, %d MiB free", n.Capacity.MemoryBytes>>20, n.Capacity.MemoryFreeBytes>>20)},
		{"pool", fmt.Sprintf("%s, %d MiB, %d MiB free, %d MiB in reserve", n.Pool.Kind, n.Pool.TotalBytes>>20, n.Pool.FreeBytes>>20, n.Pool.ReserveBytes>>20)},
		{"sandboxes", sandboxCount(n)},
	}
	if n.Draining {
		lines = append(lines, [2]string{"draining", fmt.Sprintf("yes: creates and recoveries are refused; %d operations are under way", n.OperationsUnderWay)})
	}
	for _, d := range n.Drivers {
		state := strings.TrimSpace("available, " + d.Isolation + " " + d.Version)
		if !d.Available {
			state = "not available: " + d.Reason
		}
		if d.Name == n.DefaultDriver {
			state += " (default)"
		}
		lines = append(lines, [2]string{"driver " + d.Name, state})
	}
	for _, w := range n.Warnings {
		lines = append(lines, [2]string{"warning", w})
	}
	return cli.list(lines...)
}

func sandboxCount(n *apiv1.Node) string {
	if n.MaxSandboxes == 0 {
		return fmt.Sprint(n.Sandboxes)
	}
	return fmt.Sprintf("%d, at most %d", n.Sandboxes, n.MaxSandboxes)
}
