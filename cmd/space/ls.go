package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
)

func newLsCmd(cli *cli) *cobra.Command {
	var query client.SandboxQuery
	var metadata []string
	var quiet bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List sandboxes",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if query.Metadata, err = pairs("metadata", metadata); err != nil {
				return err
			}
			c := cli.client()
			list, err := whole(cmd.Context(), query.Page, func(ctx context.Context, page client.Page) (*apiv1.List[apiv1.Sandbox], error) {
				query.Page = page
				return c.ListSandboxes(ctx, query)
			})
			if err != nil {
				return err
			}
			return printSandboxes(cli, list, quiet)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&query.States, "state", nil, "only these states (deleted ones are shown only when named)")
	f.StringVar(&query.Template, "template", "", "only those made from this template")
	f.StringArrayVar(&metadata, "metadata", nil, "only those with KEY=VALUE (repeatable)")
	f.BoolVarP(&quiet, "quiet", "q", false, "only ids")
	return cmd
}

func printSandboxes(cli *cli, list *apiv1.List[apiv1.Sandbox], quiet bool) error {
	if cli.json() {
		return cli.printJSON(list)
	}
	var rows [][]string
	for _, b := range list.Items {
		if quiet {
			if _, err := fmt.Fprintln(cli.out, b.ID); err != nil {
				return err
			}
			continue
		}
		state := b.State
		if b.Reason != nil {
			state += " (" + *b.Reason + ")"
		}
		rows = append(rows, []string{b.ID, b.Name, state, b.Template.Ref, fmt.Sprint(b.VCPUs), mib(int64(b.MemoryMiB)), moment(&b.CreatedAt), leaseText(b.Lease)})
	}
	if quiet {
		return nil
	}
	return cli.table([]string{"ID", "NAME", "STATE", "TEMPLATE", "VCPUS", "MEMORY", "CREATED (UTC)", "LEASE"}, rows)
}

// whole reads all parts of a list.
func whole[T any](ctx context.Context, page client.Page, read func(context.Context, client.Page) (*apiv1.List[T], error)) (*apiv1.List[T], error) {
	all := &apiv1.List[T]{Items: []T{}}
	page.Limit = allPages
	for {
		part, err := read(ctx, page)
		if err != nil {
			return nil, err
		}
		all.Items = append(all.Items, part.Items...)
		if part.NextCursor == "" {
			return all, nil
		}
		page.Cursor = part.NextCursor
	}
}
