package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	apiv1 "github.com/space-sandbox/space/api/v1"
)

func newShowCmd(cli *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "show SANDBOX",
		Short: "Show a sandbox",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := cli.client().Sandbox(cmd.Context(), args[0])
			return answer(cli, b, err, printSandbox)
		},
	}
}

func printSandbox(cli *cli, b *apiv1.Sandbox) error {
	state := b.State
	if b.DesiredState != b.State {
		state += ", to be " + b.DesiredState
	}
	reason := deref(b.Reason)
	if b.ReasonDetail != "" {
		reason += " (" + b.ReasonDetail + ")"
	}
	return cli.list(
		[2]string{"id", b.ID}, [2]string{"name", b.Name}, [2]string{"state", state}, [2]string{"reason", reason},
		[2]string{"template", b.Template.Ref + " " + b.Template.Digest},
		[2]string{"isolation", strings.Trim(b.Isolation+" by "+b.Driver, " ")},
		[2]string{"size", fmt.Sprintf("%d vCPU, %d MiB memory, %d MiB disk", b.VCPUs, b.MemoryMiB, b.DiskMiB)},
		[2]string{"metadata", joined(b.Metadata)},
		[2]string{"created", moment(&b.CreatedAt)}, [2]string{"ready", moment(b.ReadyAt)},
		[2]string{"lease", leaseText(b.Lease)},
		[2]string{"data plane", b.Endpoints.DataPlane}, [2]string{"operation", b.OperationID},
	)
}

// joined writes a map as k=v, k=v.
func joined(m map[string]string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, k+"="+m[k])
	}
	return strings.Join(parts, ", ")
}
