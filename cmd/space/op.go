package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
)

func newOpCmd(cli *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "op", Short: "Look at operations, wait for them, cancel them"}
	cmd.AddCommand(
		newOpLsCmd(cli),
		newOpVerb(cli, "show", "Show an operation", func(ctx context.Context, c *client.Client, id string) (*apiv1.Operation, error) {
			return c.Operation(ctx, id)
		}),
		newOpVerb(cli, "wait", "Wait until an operation has ended; exit code 1 when it failed", func(ctx context.Context, c *client.Client, id string) (*apiv1.Operation, error) {
			return waitOperation(ctx, cli, c, id, "the operation")
		}),
		newOpVerb(cli, "cancel", "Cancel an operation", func(ctx context.Context, c *client.Client, id string) (*apiv1.Operation, error) {
			return c.CancelOperation(ctx, id)
		}),
	)
	return cmd
}

func newOpLsCmd(cli *cli) *cobra.Command {
	var query client.OperationQuery
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List operations",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := cli.client()
			list, err := whole(cmd.Context(), query.Page, func(ctx context.Context, page client.Page) (*apiv1.List[apiv1.Operation], error) {
				query.Page = page
				return c.ListOperations(ctx, query)
			})
			if err != nil {
				return err
			}
			if cli.json() {
				return cli.printJSON(list)
			}
			var rows [][]string
			for _, o := range list.Items {
				rows = append(rows, []string{o.ID, o.Kind, o.Resource.ID, o.State, moment(&o.CreatedAt), took(o)})
			}
			return cli.table([]string{"ID", "KIND", "RESOURCE", "STATE", "CREATED (UTC)", "TOOK"}, rows)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&query.States, "state", nil, "only these states: queued, running, succeeded, failed, canceled")
	f.StringVar(&query.Sandbox, "sandbox", "", "only those of this sandbox (name or id)")
	return cmd
}

func took(o apiv1.Operation) string {
	if o.EndedAt == nil {
		return ""
	}
	return fmt.Sprintf("%.1f s", o.EndedAt.Sub(o.CreatedAt).Seconds())
}

// newOpVerb makes a command that does something with one operation and shows it.
func newOpVerb(cli *cli, verb, short string, do func(context.Context, *client.Client, string) (*apiv1.Operation, error)) *cobra.Command {
	return &cobra.Command{
		Use:   verb + " OPERATION",
		Short: short,
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			op, err := do(cmd.Context(), cli.client(), args[0])
			return answer(cli, op, err, printOperation)
		},
	}
}

func printOperation(cli *cli, o *apiv1.Operation) error {
	var steps []string
	for _, step := range o.Steps {
		text := stepText(step)
		if step.Error != "" && o.Error == nil { // else it is the operation's error
			text += ": " + step.Error
		}
		steps = append(steps, text)
	}
	failure := ""
	if o.Error != nil {
		failure = describe(&client.Error{Problem: *o.Error})
	}
	return cli.list(
		[2]string{"id", o.ID}, [2]string{"kind", o.Kind}, [2]string{o.Resource.Type, o.Resource.ID}, [2]string{"state", o.State},
		[2]string{"created", moment(&o.CreatedAt)}, [2]string{"took", took(*o)}, [2]string{"steps", strings.Join(steps, ", ")},
		[2]string{"error", failure},
	)
}

// stepText is a step as a word or two: what it does or how it ended, how long it took, how often it was begun again.
func stepText(s apiv1.Step) string {
	text := s.Name
	if s.MS == nil || s.State != "succeeded" {
		text += " " + s.State
	}
	if s.MS != nil {
		text += fmt.Sprintf(" %.0f ms", *s.MS)
	}
	if s.Attempts > 0 {
		text += fmt.Sprintf(" (begun again %d times)", s.Attempts)
	}
	return text
}
