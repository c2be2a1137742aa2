package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"

	"github.com/spf13/cobra"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
)

// loginShell is what `space shell` runs without a command: bash where there is one.
func loginShell() []string {
	return []string{"sh", "-c", "if command -v bash >/dev/null 2>&1; then exec bash -l; fi; exec sh -l"}
}

func newShellCmd(cli *cli) *cobra.Command {
	var in apiv1.CreateCommand
	var env []string
	cmd := &cobra.Command{
		Use:   "shell SANDBOX [flags] [-- COMMAND [ARG...]]",
		Short: "Work in a sandbox on a terminal",
		Long: `Opens a shell, or runs a command, on a terminal in the sandbox. All keys go there, Ctrl-C and Ctrl-Z too, and the
exit code is the command's. The size follows the window.

The keys Enter ~ . leave the session: it goes on, and space attach comes back to it. Enter ~ ~ types a ~.
When standard input is no terminal, the shell reads it like a script.`,
		Example: "  space shell web\n  space shell web -u root -- top",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if in.Env, err = pairs("env", env); err != nil {
				return err
			}
			in.Argv = args[1:]
			if len(in.Argv) == 0 {
				in.Argv = loginShell()
			}
			return shell(cmd.Context(), cli, args[0], in)
		},
	}
	f := cmd.Flags()
	f.StringArrayVarP(&env, "env", "e", nil, "KEY=VALUE for its environment (repeatable)")
	f.StringVarP(&in.Cwd, "cwd", "w", "", "working directory")
	f.StringVarP(&in.User, "user", "u", "", "user in the guest (default: the template's)")
	f.StringVar(&in.Tag, "tag", "", "label to find it again by")
	f.BoolVar(&in.Record, "record", false, "keep a transcript on the host, also when the sandbox is gone (space logs)")
	return cmd
}

// shell runs a command on a terminal when we have one.
func shell(ctx context.Context, cli *cli, ref string, in apiv1.CreateCommand) error {
	if !userTerminal(cli.in).present() {
		in.Stdin = true
		return execLive(ctx, cli, ref, in)
	}
	return execOnTerminal(ctx, cli, ref, in)
}

// execOnTerminal runs a command on a terminal of its own, connected with ours.
func execOnTerminal(ctx context.Context, cli *cli, ref string, in apiv1.CreateCommand) error {
	in.PTY = userTerminal(cli.in).sizeOrDefault()
	in.Env = withTerminalNames(in.Env)
	api := cli.client()
	made, err := api.CreateCommand(ctx, ref, in)
	if err != nil {
		return err
	}
	return cli.onTerminal(ctx, api, made.ID, client.AttachOptions{Token: &made.Attach})
}

// withTerminalNames adds what programs ask about the terminal they run on, where env does not say it.
func withTerminalNames(env map[string]string) map[string]string {
	out := map[string]string{}
	for _, name := range []string{"TERM", "COLORTERM"} {
		if v := os.Getenv(name); v != "" {
			out[name] = v
		}
	}
	maps.Copy(out, env)
	return out
}

// replayed is how much of what a terminal has shown is shown again to who comes back to it.
const replayed = 16 << 10

func newAttachCmd(cli *cli) *cobra.Command {
	var takeover, stdin bool
	cmd := &cobra.Command{
		Use:   "attach COMMAND",
		Short: "Connect to a command session; one that was not started starts",
		Long: `Connects to a command session by its id (cmd_…) and shows its output; one that was only created starts. The exit code
is the command's. On a session with a terminal, all keys go there, and Enter ~ . leaves it; what it has shown lately is
shown again. On others, output is shown from the beginning, Ctrl-C sends SIGINT, and a second Ctrl-C leaves.`,
		Example: "  space attach cmd_k3v0q7c2m9x4b8n1z5w6 --takeover",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return attach(cmd.Context(), cli, args[0], stdin, takeover)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&takeover, "takeover", false, "end all other attachments of the session")
	f.BoolVarP(&stdin, "stdin", "i", false, "pass standard input on (a terminal's always is)")
	return cmd
}

func attach(ctx context.Context, cli *cli, id string, stdin, takeover bool) error {
	api := cli.client()
	made, err := api.Command(ctx, id)
	if err != nil {
		return err
	}
	opts := client.AttachOptions{Takeover: takeover}
	if made.PTY == nil {
		return attachLive(ctx, cli, api, id, stdin, opts)
	}
	if made.PTYBytes > replayed {
		opts.PTYOffset = made.PTYBytes - replayed
	}
	return cli.onTerminal(ctx, api, id, opts)
}

func newLogsCmd(cli *cli) *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use:   "logs COMMAND",
		Short: "Show the output of a command session",
		Long: `Shows what is kept of a command session's output, standard output and error each where it belongs: what the sandbox
still has, or, of a session that was recorded, its transcript, also when the sandbox is gone. It does not start one that
was only created. With --follow it goes on to the session's end.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return logs(cmd.Context(), cli, args[0], follow) },
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the session has ended")
	return cmd
}

func logs(ctx context.Context, cli *cli, id string, follow bool) error {
	api := cli.client()
	made, err := api.Command(ctx, id)
	if client.Code(err) == "not_found" { // its sandbox may be gone
		if terr := cli.transcript(ctx, api, id); client.Code(terr) != "not_found" {
			return terr
		}
	}
	if err != nil {
		return err
	}
	if made.Record && made.Ended() {
		return cli.transcript(ctx, api, id)
	}
	if follow && made.State == "running" {
		opts := client.AttachOptions{Stdout: cli.out, Stderr: cli.err, OnGap: cli.missing}
		(&pauseNote{}).tell(cli, &opts, false)
		a, err := api.Attach(ctx, id, opts)
		if err != nil {
			return err
		}
		_, err = a.Wait()
		return err
	}
	if made.State == "created" {
		return fmt.Errorf("%s has not been started", id)
	}
	streams := []string{"stdout", "stderr"}
	if made.PTY != nil {
		streams = []string{"pty"}
	}
	for _, stream := range streams {
		if err := cli.kept(ctx, api, id, stream); err != nil {
			return err
		}
	}
	return nil
}

// transcript writes what was recorded of a session.
func (c *cli) transcript(ctx context.Context, api *client.Client, id string) error {
	t, err := api.Transcript(ctx, id)
	if err != nil {
		return err
	}
	defer func() { _ = t.Close() }() // it was only read
	next := map[string]uint64{}
	for {
		e, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if e.Type == apiv1.TranscriptResult {
			continue
		}
		if e.Type == apiv1.TranscriptGap || e.Offset > next[e.Stream] {
			c.missing(0, next[e.Stream], max(e.Offset, e.To))
		}
		next[e.Stream] = max(e.To, e.Offset+uint64(len(e.Data)))
		to := c.out
		if e.Stream == "stderr" {
			to = c.err
		}
		if _, err := to.Write(e.Data); err != nil {
			return fmt.Errorf("write the output: %w", err)
		}
	}
}

// kept writes what is kept of one stream.
func (c *cli) kept(ctx context.Context, api *client.Client, id, stream string) error {
	out, err := api.Output(ctx, id, nil, client.OutputOptions{Stream: stream})
	if err != nil {
		return err
	}
	defer out.Close()
	if out.GapTo > out.GapFrom {
		c.missing(0, out.GapFrom, out.GapTo)
	}
	to := c.out
	if stream == "stderr" {
		to = c.err
	}
	if _, err := io.Copy(to, out); err != nil {
		return fmt.Errorf("read the output: %w", err)
	}
	return nil
}

// missing says that output is not kept any more.
func (c *cli) missing(_ byte, from, to uint64) {
	fmt.Fprintf(c.err, "space: %d bytes of output are missing (the command wrote faster than they were read)\n", to-from)
}
