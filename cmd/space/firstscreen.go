package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/space-sandbox/space/client"
)

// firstScreenPatience is how long the first screen waits to see whether SPACE runs.
const firstScreenPatience = time.Second

// firstScreen is what space says without arguments: what it is, how things stand here, and what to do next.
func firstScreen(ctx context.Context, cli *cli, cmd *cobra.Command) error {
	ctx, cancel := context.WithTimeout(ctx, firstScreenPatience)
	defer cancel()
	fmt.Fprintf(cli.out, "SPACE %s: isolated Linux machines for programs that nobody trusts.\n\n", version)
	c := cli.client()
	boxes, err := c.ListSandboxes(ctx, client.SandboxQuery{Page: client.Page{Limit: 1, Count: true}})
	switch {
	case err == nil:
		n := len(boxes.Items)
		if boxes.Total != nil {
			n = *boxes.Total
		}
		fmt.Fprintf(cli.out, "It runs at %s with %s. Next:\n\n", plain(cli.url), count(n, "sandbox", "sandboxes"))
		fmt.Fprint(cli.out, usual)
	case client.Code(err) == "unauthenticated":
		fmt.Fprintf(cli.out, "It runs at %s, but has no key of yours: set SPACE_API_KEY, or use sudo.\n", plain(cli.url))
	case client.Code(err) != "":
		fmt.Fprintf(cli.out, "It runs at %s, but: %s\n", plain(cli.url), describe(err))
	default:
		fmt.Fprintf(cli.out, "It does not answer at %s. To begin on this machine:\n\n%s", plain(cli.url), begin)
	}
	fmt.Fprintf(cli.out, "\nAll commands: %s --help\n", cmd.Root().Name())
	return nil
}

const usual = `  space create --template base --name one   a machine of its own
  space exec one -- uname -a                run something in it
  space cp FILE one:                        put a file into it
  space ls                                  what there is
  space rm one                              delete it
`

const begin = `  space doctor       what this machine lacks, and what helps
  sudo space setup   once: packages, users, disks, templates, the first key
  sudo space up      start it; Ctrl-C stops it and leaves machines running
`

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
