package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	apiv1 "github.com/space-sandbox/space/api/v1"
)

func newLeaseCmd(cli *cli) *cobra.Command {
	var ttl time.Duration
	var in apiv1.PatchLease
	var extend, remove bool
	cmd := &cobra.Command{
		Use:   "lease SANDBOX",
		Short: "Show or change how long a sandbox runs",
		Long: `Shows a sandbox's lease, or changes it: --ttl begins it anew, with --extend the time is added to what is left,
--remove lets the sandbox run for ever. A lease's time stands still while the sandbox is paused.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, c := cmd.Context(), cli.client()
			given := cmd.Flags().Changed
			var box *apiv1.Sandbox
			var err error
			switch {
			case remove && (given("ttl") || extend || given("on-expiry")):
				return &usageError{err: errors.New("--remove goes with no other flag")}
			case remove:
				box, err = c.RemoveLease(ctx, args[0])
			case given("ttl"):
				in.TTLSeconds = ttl.Seconds()
				if extend {
					in.Mode = "extend"
				}
				box, err = c.SetLease(ctx, args[0], in)
			case extend || given("on-expiry"):
				return &usageError{err: errors.New("--ttl is missing")}
			default:
				box, err = c.Sandbox(ctx, args[0])
			}
			return answer(cli, box, err, printLease)
		},
	}
	f := cmd.Flags()
	f.DurationVar(&ttl, "ttl", 0, "how long, such as 30m")
	f.BoolVar(&extend, "extend", false, "add --ttl to what is left")
	f.StringVar(&in.OnExpiry, "on-expiry", "", "what happens at the end: delete or pause")
	f.BoolVar(&remove, "remove", false, "remove the lease")
	return cmd
}

func printLease(cli *cli, b *apiv1.Sandbox) error {
	text := "none"
	if b.Lease != nil {
		text = leaseText(b.Lease)
	}
	return cli.list([2]string{"id", b.ID}, [2]string{"name", b.Name}, [2]string{"state", b.State}, [2]string{"lease", text})
}

// leaseText says when a lease ends and what happens then.
func leaseText(l *apiv1.Lease) string {
	switch {
	case l == nil:
		return ""
	case l.ExpiresAt != nil:
		return fmt.Sprintf("%s at %s", l.OnExpiry, moment(l.ExpiresAt))
	case deref(l.RemainingSeconds) == 0:
		return l.OnExpiry + ", ended"
	}
	return fmt.Sprintf("%s, %s left", l.OnExpiry, (time.Duration(*l.RemainingSeconds * float64(time.Second))).Round(time.Second))
}
