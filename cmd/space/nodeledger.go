package main

import (
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	apiv1 "github.com/space-sandbox/space/api/v1"
)

func newNodeLedgerCmd(cli *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "ledger",
		Short: "Compare what SPACE should have on the machine with what is there (needs an admin key)",
		Long: `Counts every object that SPACE makes in the kernel and in its directories, by kind: how many there are (live), and how many
the sandboxes that exist account for (expected). Below, what differs. Objects of others are not counted.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := cli.client().Ledger(cmd.Context())
			return answer(cli, l, err, printLedger)
		},
	}
}

func newNodeReconcileCmd(cli *cli) *cobra.Command {
	var in apiv1.ReconcileNode
	cmd := &cobra.Command{
		Use:   "reconcile",
		Short: "Remove what belongs to no sandbox (needs an admin key)",
		Long: `Removes what the ledger shows as live and not expected, and reports what is not safe to remove. Sandboxes that exist are not
touched; those that are being made or removed at the moment are left alone.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			done, err := cli.client().Reconcile(cmd.Context(), in)
			return answer(cli, done, err, printReconciled)
		},
	}
	cmd.Flags().BoolVar(&in.DryRun, "dry-run", false, "only say what would be done")
	return cmd
}

func printLedger(cli *cli, l *apiv1.Ledger) error {
	var rows [][]string
	for _, kind := range slices.Sorted(maps.Keys(l.Kinds)) {
		rows = append(rows, []string{kind, fmt.Sprint(l.Kinds[kind].Live), fmt.Sprint(l.Kinds[kind].Expected)})
	}
	if err := cli.table([]string{"KIND", "LIVE", "EXPECTED"}, rows); err != nil {
		return err
	}
	fmt.Fprintf(cli.out, "drift: %d\n", l.Drift)
	for _, o := range l.Objects {
		what := "stands for nothing"
		if o.Expected {
			what = "is missing"
		}
		fmt.Fprintf(cli.out, "%s %s %s\n", plain(o.Kind), plain(o.Name), what)
	}
	return nil
}

func printReconciled(cli *cli, r *apiv1.Reconciled) error {
	if len(r.Repairs) == 0 {
		fmt.Fprintln(cli.out, "nothing to do")
		return nil
	}
	for _, p := range r.Repairs {
		what := "reported"
		switch {
		case p.Action == "remove" && p.Done:
			what = "removed"
		case p.Action == "remove" && r.DryRun:
			what = "would be removed"
		case p.Action == "remove":
			what = "not removed"
		}
		line := what + ": " + p.Kind + " " + p.Name
		if p.Reason != "" {
			line += " (" + p.Reason + ")"
		}
		fmt.Fprintln(cli.out, plain(line))
	}
	return nil
}
