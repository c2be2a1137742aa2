package main

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/space-sandbox/space/internal/datadir"
)

// std is where a run reads and writes.
type std struct {
	in       io.Reader
	out, err io.Writer
}

// run executes one command line and returns the exit code.
func run(ctx context.Context, args []string, io std) int {
	running := false
	root := newRoot(io, &running)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil && !running {
		err = &usageError{err: err} // flags and arguments are checked before a command runs
	}
	if usage, ok := errors.AsType[*usageError](err); ok {
		usage.command = cmd.CommandPath()
	}
	return report(io.err, err)
}

// newRoot makes the command tree. running becomes true when a command's own code begins.
func newRoot(io std, running *bool) *cobra.Command {
	cli := &cli{std: io}
	root := &cobra.Command{
		Use:   "space",
		Short: "Isolated Linux machines for programs that nobody trusts",
		Long: `SPACE hands out isolated Linux machines (microVMs).

Environment: SPACE_URL (the API), SPACE_API_KEY (the key, or a token for one sandbox), SPACE_DATA_DIR (the data
directory, where the first key is read from when no other is given).`,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return firstScreen(cmd.Context(), cli, cmd) },
		SilenceErrors: true, SilenceUsage: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			*running = true
			return cli.check()
		},
	}
	root.SetIn(io.in)
	root.SetOut(io.out)
	root.SetErr(io.err)
	flags := root.PersistentFlags()
	flags.StringVar(&cli.dataDirFlag, "data-dir", envOr("SPACE_DATA_DIR", datadir.Default), "data directory (SPACE_DATA_DIR)")
	flags.StringVar(&cli.url, "url", envOr("SPACE_URL", defaultURL), "where the API is (SPACE_URL)")
	flags.StringVarP(&cli.output, "output", "o", "text", "text or json")
	dataDir := func() string { return cli.dataDirFlag }

	root.AddCommand(
		newDoctorCmd(cli),
		newSetupCmd(dataDir),
		newUpCmd(dataDir),
		newDownCmd(dataDir),
		newCreateCmd(cli),
		newLsCmd(cli),
		newShowCmd(cli),
		newExecCmd(cli),
		newShellCmd(cli),
		newAttachCmd(cli),
		newLogsCmd(cli),
		newCpCmd(cli),
		newPauseCmd(cli),
		newResumeCmd(cli),
		newRecoverCmd(cli),
		newRmCmd(cli),
		newLeaseCmd(cli),
		newOpCmd(cli),
		newEventsCmd(cli),
		newDrainCmd(cli),
		newTemplateCmd(cli),
		newTokenCmd(cli),
		newAssetsCmd(),
		newVersionCmd(cli),
		newManCmd(),
	)
	for _, part := range newPartCmds(dataDir) {
		if part.Name() == "node" {
			part.AddCommand(newNodeInfoCmd(cli), newNodeLedgerCmd(cli), newNodeReconcileCmd(cli))
		}
		root.AddCommand(part)
	}
	addCompletion(cli, root)
	return root
}

func envOr(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}
