package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/space-sandbox/space/internal/datadir"
	"github.com/space-sandbox/space/internal/ociimage"
	"github.com/space-sandbox/space/internal/part"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/telemetry"
)

// developmentAuth is shown at start-up and by /v1/node as long as there is no other way to make keys than setup's.
const developmentAuth = "development authentication: not for production"

// newPartCmds are the processes that space up starts; nobody calls them by hand.
func newPartCmds(dataDir func() string) []*cobra.Command {
	var dataURL, driver string
	var allow []string
	control := &cobra.Command{Use: part.Control, Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runPart(cmd, part.Control, dataDir(), func(p partContext) error {
				networks, err := prefixes("registry-allow", allow)
				if err != nil {
					return err
				}
				return part.RunControl(p.ctx, part.ControlConfig{Dir: p.dir, DataURL: dataURL, Version: version, Warning: developmentAuth,
					RegistryAllow: networks, Logger: p.logger})
			})
		}}
	control.Flags().StringVar(&dataURL, "data-url", "", "base URL of the data plane")
	control.Flags().StringSliceVar(&allow, "registry-allow", nil, "networks that images may be fetched from")
	gateway := &cobra.Command{Use: part.Gateway, Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runPart(cmd, part.Gateway, dataDir(), func(p partContext) error {
				return part.RunGateway(p.ctx, p.dir, p.logger)
			})
		}}
	return []*cobra.Command{control, gateway, newNodePart(dataDir, &driver), newWorkerCmd()}
}

func runPart(cmd *cobra.Command, name, dataDir string, run func(partContext) error) error {
	logger := newLogger(cmd.ErrOrStderr(), name)
	slog.SetDefault(logger) // for what libraries write through package log
	ctx, err := part.Start(cmd.Context(), name)
	if err != nil {
		return err
	}
	dir, err := datadir.Open(dataDir)
	if err == nil {
		err = run(partContext{ctx: ctx, dir: dir, logger: logger})
	}
	if err == nil || ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	logger.Error("ended", "error", err, "remedy", sandbox.AsError(err).Remedy)
	if part.Hopeless(err) {
		return exitStatus(part.ExitHopeless)
	}
	return exitStatus(exitFailure)
}

// newLogger logs for people and machines alike: text, one line a record. SPACE_LOG=debug shows more.
func newLogger(w io.Writer, name string) *slog.Logger {
	level := slog.LevelInfo
	if os.Getenv("SPACE_LOG") == "debug" {
		level = slog.LevelDebug
	}
	return slog.New(telemetry.LogHandler(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))).With("process", name)
}

func requireRoot(what string) error {
	if os.Geteuid() == 0 {
		return nil
	}
	return &sandbox.Error{Code: sandbox.CodeHostSetup, Message: what + " needs root",
		Cause: "it makes microVMs, network namespaces and mounts", Remedy: "run it with sudo"}
}

// partContext is what a part runs with.
type partContext struct {
	ctx    context.Context
	dir    *datadir.Dir
	logger *slog.Logger
}

// newWorkerCmd is the process that node starts, confined, to unpack an image.
func newWorkerCmd() *cobra.Command {
	return &cobra.Command{Use: "worker", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return ociimage.Worker(cmd.Context(), args[0], cmd.OutOrStdout())
		}}
}
