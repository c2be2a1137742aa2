package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
)

// maxExecInput is how much standard input fits the one request of exec -o json.
const maxExecInput = 700 << 10

func newExecCmd(cli *cli) *cobra.Command {
	var in apiv1.CreateCommand
	var env []string
	var timeout time.Duration
	var detach, tty bool
	cmd := &cobra.Command{
		Use:   "exec SANDBOX [flags] -- COMMAND [ARG...]",
		Short: "Run a command in a sandbox; the exit code is the command's",
		Long: `Runs a command in a sandbox and shows its output as it comes. The exit code is the command's: 128 + n when signal n
ended it, 127 when there is no such command, 126 when it may not be run, 125 when it could not be started otherwise.

Ctrl-C sends SIGINT to the command; a second Ctrl-C, or the first while the sandbox is paused, leaves it running and ends
space. When nobody reads the output any more, as behind head, the command gets SIGPIPE. When the connection to SPACE
breaks, or the sandbox is paused and resumed, the output goes on from where it was.`,
		Example: "  space exec web -- python3 -m pytest\n  space exec web -i -- tar x < files.tar",
		Args:    cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if in.Env, err = pairs("env", env); err != nil {
				return err
			}
			in.Argv, in.TimeoutSeconds = args[1:], timeout.Seconds()
			switch {
			case detach:
				if tty {
					size := defaultSize()
					in.PTY = &size
				}
				return execDetached(cmd.Context(), cli, args[0], in)
			case tty && cli.json():
				return &usageError{err: errors.New("--tty and -o json exclude each other")}
			case tty:
				return execOnTerminal(cmd.Context(), cli, args[0], in)
			case cli.json():
				return execJSON(cmd.Context(), cli, args[0], in)
			}
			return execLive(cmd.Context(), cli, args[0], in)
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		if _, value := errors.AsType[*pflag.InvalidValueError](err); value {
			return err
		}
		return fmt.Errorf("%w (flags of the command to run come after --)", err)
	})
	f := cmd.Flags()
	f.SetInterspersed(true)
	f.BoolVarP(&in.Stdin, "stdin", "i", false, "pass standard input on")
	f.BoolVarP(&tty, "tty", "t", false, "run it on a terminal, and pass standard input on")
	f.StringArrayVarP(&env, "env", "e", nil, "KEY=VALUE for its environment (repeatable)")
	f.StringVarP(&in.Cwd, "cwd", "w", "", "working directory")
	f.StringVarP(&in.User, "user", "u", "", "user in the guest (default: the template's)")
	f.DurationVar(&timeout, "timeout", 0, "kill it after so long, such as 90s")
	f.StringVar(&in.Tag, "tag", "", "label to find it again by")
	f.BoolVar(&in.Record, "record", false, "keep a transcript on the host, also when the sandbox is gone (space logs)")
	f.BoolVarP(&detach, "detach", "d", false, "start it, print its id and leave it running")
	return cmd
}

// execDetached starts a command and prints its id.
func execDetached(ctx context.Context, cli *cli, ref string, in apiv1.CreateCommand) error {
	if in.Stdin {
		return &usageError{err: errors.New("--detach and --stdin exclude each other")}
	}
	in.Start = true
	made, err := cli.client().CreateCommand(ctx, ref, in)
	if err != nil {
		return err
	}
	if cli.json() {
		return cli.printJSON(made)
	}
	_, err = fmt.Fprintln(cli.out, made.ID)
	return err
}

// execJSON runs a command to its end and prints the API's answer.
func execJSON(ctx context.Context, cli *cli, ref string, in apiv1.CreateCommand) error {
	body := apiv1.Exec{Argv: in.Argv, Env: in.Env, Cwd: in.Cwd, User: in.User, Stdin: in.Stdin, TimeoutSeconds: in.TimeoutSeconds, Tag: in.Tag, Record: in.Record}
	if in.Stdin {
		data, err := io.ReadAll(io.LimitReader(cli.in, maxExecInput+1))
		if err != nil {
			return fmt.Errorf("read standard input: %w", err)
		}
		if len(data) > maxExecInput {
			return fmt.Errorf("standard input is too large for -o json (more than %d KiB)", maxExecInput>>10)
		}
		body.StdinB64 = base64.StdEncoding.EncodeToString(data)
	}
	result, err := cli.client().Exec(ctx, ref, body)
	if err != nil {
		return err
	}
	if err := cli.printJSON(result); err != nil {
		return err
	}
	if !result.Ended() {
		return fmt.Errorf("the command is still running: %s", result.ID)
	}
	exit := client.Exit{State: result.State, ExitCode: result.ExitCode, Signal: deref(result.Signal), Error: result.Error}
	if status := exitCode(exit); status != 0 {
		return exitStatus(status)
	}
	return nil
}

// execLive runs a command with its streams connected to ours.
func execLive(ctx context.Context, cli *cli, ref string, in apiv1.CreateCommand) error {
	c := cli.client()
	made, err := c.CreateCommand(ctx, ref, in)
	if err != nil {
		return err
	}
	// With SIGPIPE caught, a reader of ours that has gone, such as head(1), is an error to act upon.
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, unix.SIGPIPE)
	defer signal.Stop(broken)
	err = attachLive(ctx, cli, c, made.ID, in.Stdin, client.AttachOptions{Token: &made.Attach})
	if errors.Is(err, unix.EPIPE) {
		return pipeBroken(ctx, c, made.ID)
	}
	return err
}

// pipeBroken ends the command as the shell's pipe would have ended it here.
func pipeBroken(ctx context.Context, c *client.Client, id string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if _, err := c.Signal(ctx, id, "SIGPIPE"); err != nil && client.Code(err) != "not_running" {
		return fmt.Errorf("nobody reads the output any more, and the command goes on (%s): %w", id, err)
	}
	return exitStatus(exitSignal + int(unix.SIGPIPE))
}

// attachLive connects a command's streams to ours until it ends.
func attachLive(ctx context.Context, cli *cli, c *client.Client, id string, stdin bool, opts client.AttachOptions) error {
	ctx, interrupts := forwardInterrupts(ctx, c, id)
	defer interrupts.stop()
	opts.Stdout, opts.Stderr, opts.OnGap = cli.out, cli.err, cli.missing
	interrupts.note.tell(cli, &opts, false)
	a, err := c.Attach(ctx, id, opts)
	if err != nil {
		return interrupts.verdict(cli, id, err)
	}
	if stdin {
		go func() { // ends with the process: a read of a terminal cannot be interrupted
			_, _ = io.Copy(a, cli.in) // the attachment has ended: the exit code says why
			a.CloseStdin()
		}()
	}
	exit, err := a.Wait()
	if err != nil {
		return interrupts.verdict(cli, id, err)
	}
	return cli.ended(exit)
}

func endOf(exit *client.Exit) string {
	if exit.State != "exited" {
		return fmt.Sprintf("the command did not start (%s: %s)", exit.Error.Code, exit.Error.Message)
	}
	return fmt.Sprintf("the command was ended (%s: %s)", exit.Error.Code, exit.Error.Message)
}

// exitCode is what a shell would make of the end of a command.
func exitCode(exit client.Exit) int {
	switch {
	case exit.State == "exited" && exit.Signal != "":
		return exitSignal + int(unix.SignalNum(exit.Signal))
	case exit.State == "exited" && exit.ExitCode != nil:
		return *exit.ExitCode
	case exit.State == "failed" && exit.Error != nil && exit.Error.Code == "command_not_found":
		return exitNoCommand
	case exit.State == "failed" && exit.Error != nil && exit.Error.Code == "permission_denied":
		return exitNotAllowed
	}
	return exitNotStarted
}
