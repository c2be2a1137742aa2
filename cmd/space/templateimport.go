package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	apiv1 "github.com/space-sandbox/space/api/v1"
)

func newTemplateImportCmd(cli *cli) *cobra.Command {
	var noWait bool
	cmd := &cobra.Command{
		Use:   "import NAME IMAGE|FILE",
		Short: "Make a template of an OCI or Docker image",
		Long: `Makes a template of an image, waits until it is there, and prints its digest. An existing FILE, or - for standard input, is
an archive: an OCI layout, or what docker save, podman save and skopeo write, not compressed. Anything else is an image
in a registry, which the server fetches without credentials.`,
		Example: "  space template import alpine docker.io/library/alpine:3.20\n  docker save app | space template import app:v1 -",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			made, err := acceptImport(cmd.Context(), cli, args[0], args[1])
			if err != nil {
				return err
			}
			if !noWait {
				op, err := waitOperation(cmd.Context(), cli, cli.client(), made.Operation.ID, "the import")
				if err != nil {
					return err
				}
				made.Operation = *op
				if op.Result != nil {
					made.Template = op.Result.Template
				}
			}
			if cli.json() {
				return cli.printJSON(made)
			}
			if made.Template == nil {
				_, err = fmt.Fprintln(cli.out, made.Operation.ID)
				return err
			}
			_, err = fmt.Fprintln(cli.out, made.Template.Digest)
			return err
		},
	}
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "do not wait: print the operation")
	return cmd
}

func acceptImport(ctx context.Context, cli *cli, name, source string) (*apiv1.TemplateLifecycle, error) {
	c := cli.client()
	if source == "-" {
		return c.ImportArchive(ctx, name, cli.in, -1)
	}
	info, err := os.Stat(source)
	if err != nil && (filepath.IsAbs(source) || strings.HasPrefix(source, ".")) {
		return nil, err // no image has such a name
	}
	if err != nil || !info.Mode().IsRegular() {
		return c.ImportImage(ctx, apiv1.ImportTemplate{Name: name, Image: source})
	}
	f, err := os.Open(source)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	shown := newProgress(cli.err, source, info.Size())
	defer shown.end()
	return c.ImportArchive(ctx, name, io.TeeReader(f, shown), info.Size())
}

func newTemplateRmCmd(cli *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "rm TEMPLATE...",
		Short: "Delete templates",
		Long: `Takes names away from templates. The content goes with its last name, or when it is named by its digest; while a sandbox
made from it exists, that is refused.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return every(args, func(ref string) error {
				if err := cli.client().DeleteTemplate(cmd.Context(), ref); err != nil {
					return err
				}
				if cli.json() {
					return nil
				}
				_, err := fmt.Fprintln(cli.out, ref)
				return err
			})
		},
	}
}
