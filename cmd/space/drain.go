package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
)

// drainPoll is how often a drain that is waited for is looked at.
const drainPoll = 500 * time.Millisecond

func newDrainCmd(cli *cli) *cobra.Command {
	var undo, wait bool
	cmd := &cobra.Command{
		Use:   "drain",
		Short: "Take no new work, for an upgrade or a restart (needs an admin key)",
		Long: `Has SPACE refuse creates and recoveries until space drain --undo, also over restarts. Everything else works, what is
under way goes on, and sandboxes stay as they are.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := cli.client()
			d, err := c.Drain(cmd.Context(), !undo)
			if err == nil && wait && !undo {
				d, err = waitDrained(cmd.Context(), c, d)
			}
			return answer(cli, d, err, printDrain)
		},
	}
	cmd.Flags().BoolVar(&undo, "undo", false, "take new work again")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until no operation is under way")
	cmd.MarkFlagsMutuallyExclusive("undo", "wait")
	return cmd
}

// waitDrained returns when no operation is under way, or when somebody has ended the drain.
func waitDrained(ctx context.Context, c *client.Client, d *apiv1.Drain) (*apiv1.Drain, error) {
	tick := time.NewTicker(drainPoll)
	defer tick.Stop()
	for d.Draining && d.OperationsUnderWay > 0 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		n, err := c.Node(ctx)
		if err != nil {
			return nil, err
		}
		d = &apiv1.Drain{Draining: n.Draining, OperationsUnderWay: n.OperationsUnderWay, Sandboxes: n.Sandboxes}
	}
	if !d.Draining {
		return nil, fmt.Errorf("the drain was ended by somebody else; %d operations are under way", d.OperationsUnderWay)
	}
	return d, nil
}

func printDrain(cli *cli, d *apiv1.Drain) error {
	draining := "no: new work is taken"
	if d.Draining {
		draining = "yes: creates and recoveries are refused"
	}
	return cli.list([2]string{"draining", draining}, [2]string{"operations under way", fmt.Sprint(d.OperationsUnderWay)},
		[2]string{"sandboxes", fmt.Sprintf("%d, which stay as they are", d.Sandboxes)})
}
