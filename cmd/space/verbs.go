package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
)

// verb is a lifecycle call of the SDK.
type verb func(c *client.Client, ctx context.Context, ref string, opts ...client.Option) (*apiv1.Lifecycle, error)

func newPauseCmd(cli *cli) *cobra.Command {
	return newVerbCmd(cli, "pause", "Stop sandboxes where they stand", `Stops the virtual CPUs of sandboxes. Memory, disk and commands stay as they are, and go on with space resume. A sandbox
that is paused already is left so. Prints each one that is paused.`, (*client.Client).PauseSandbox)
}

func newResumeCmd(cli *cli) *cobra.Command {
	return newVerbCmd(cli, "resume", "Let paused sandboxes go on", `Lets paused sandboxes go on where they stood, with their clocks set. One that runs already is left so. Prints each one
that runs.`, (*client.Client).ResumeSandbox)
}

func newRecoverCmd(cli *cli) *cobra.Command {
	return newVerbCmd(cli, "recover", "Boot failed sandboxes anew on their disks", `Boots a new machine on the disk that a failed sandbox has left: after a crash of the virtual machine or of the host. What
was in memory, commands too, is lost; what was written to the disk is there. Prints each one that runs.`, (*client.Client).RecoverSandbox)
}

func newVerbCmd(cli *cli, name, short, long string, call verb) *cobra.Command {
	var noWait bool
	cmd := &cobra.Command{
		Use: name + " SANDBOX...", Short: short, Long: long, Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c := cli.client()
			accepted := map[string]*apiv1.Lifecycle{}
			refused := every(args, func(ref string) (err error) { // all begin before the first is waited for
				accepted[ref], err = call(c, cmd.Context(), ref)
				return err
			})
			ended := every(args, func(ref string) (err error) {
				made := accepted[ref]
				if made == nil {
					return nil
				}
				if !noWait {
					if made, err = settle(cmd.Context(), cli, c, made); err != nil {
						return err
					}
				}
				if cli.json() {
					return cli.printJSON(made)
				}
				_, err = fmt.Fprintln(cli.out, ref)
				return err
			})
			return errors.Join(refused, ended)
		},
	}
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "do not wait until it is done")
	return cmd
}
