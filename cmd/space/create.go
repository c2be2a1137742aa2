package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
)

func newCreateCmd(cli *cli) *cobra.Command {
	var in apiv1.CreateSandbox
	var env, metadata []string
	var vcpus, memory, disk int
	var noWait bool
	var ttl time.Duration
	var onExpiry string
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Create a sandbox and print its id",
		Long:  "Creates a sandbox, waits until it is ready, and prints its id.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if in.Env, err = pairs("env", env); err != nil {
				return err
			}
			if in.Metadata, err = pairs("metadata", metadata); err != nil {
				return err
			}
			for _, n := range []struct {
				flag  string
				value *int
				to    **int
			}{{"vcpus", &vcpus, &in.VCPUs}, {"memory", &memory, &in.MemoryMiB}, {"disk", &disk, &in.DiskMiB}} {
				if cmd.Flags().Changed(n.flag) {
					*n.to = n.value
				}
			}
			if cmd.Flags().Changed("ttl") {
				in.Lease = &apiv1.CreateLease{TTLSeconds: ttl.Seconds(), OnExpiry: onExpiry}
			} else if onExpiry != "" {
				return &usageError{err: errors.New("--on-expiry needs --ttl")}
			}
			made, err := create(cmd.Context(), cli, in, !noWait)
			if err != nil {
				return err
			}
			if cli.json() {
				return cli.printJSON(made)
			}
			_, err = fmt.Fprintln(cli.out, made.Sandbox.ID)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&in.Template, "template", "base", "name, name:tag or digest of the template")
	f.StringVar(&in.Name, "name", "", "name of the sandbox")
	f.IntVar(&vcpus, "vcpus", 1, "number of virtual CPUs")
	f.IntVar(&memory, "memory", 512, "memory in MiB")
	f.IntVar(&disk, "disk", 4096, "disk in MiB")
	f.StringArrayVar(&env, "env", nil, "KEY=VALUE for the environment of every command (repeatable)")
	f.StringArrayVar(&metadata, "metadata", nil, "KEY=VALUE to find it again by (repeatable)")
	f.StringVar(&in.Driver, "driver", "", "virtual machine monitor (default: the node's)")
	f.DurationVar(&ttl, "ttl", 0, "how long it runs, such as 1h (default: for ever)")
	f.StringVar(&onExpiry, "on-expiry", "", "what happens then: delete (default) or pause")
	f.BoolVar(&noWait, "no-wait", false, "do not wait until it is ready")
	return cmd
}

func create(ctx context.Context, cli *cli, in apiv1.CreateSandbox, wait bool) (*apiv1.Lifecycle, error) {
	c := cli.client()
	made, err := c.CreateSandbox(ctx, in)
	if err != nil || !wait {
		return made, err
	}
	return settle(ctx, cli, c, made)
}

// settle waits for the operation of a lifecycle call, with progress on a terminal, and brings the answer up to date.
func settle(ctx context.Context, cli *cli, c *client.Client, made *apiv1.Lifecycle) (*apiv1.Lifecycle, error) {
	op, err := waitOperation(ctx, cli, c, made.Operation.ID, fmt.Sprintf("the %s of sandbox %s", made.Operation.Kind, made.Sandbox.ID))
	if err != nil {
		return nil, err
	}
	made.Operation = *op
	box, err := c.Sandbox(ctx, made.Sandbox.ID)
	switch {
	case err == nil:
		made.Sandbox = *box
	case client.IsNotFound(err):
		made.Sandbox.State, made.Sandbox.DesiredState, made.Sandbox.OperationID = "deleted", "deleted", ""
	default:
		return nil, err
	}
	return made, nil
}

// waitOperation waits for an operation to end, showing its step on a terminal. Its failure is the error. Ctrl-C ends the
// waiting (an exitStatus), not the operation: what says what goes on.
func waitOperation(ctx context.Context, cli *cli, c *client.Client, id, what string) (op *apiv1.Operation, err error) {
	err = interruptible(ctx, func(ctx context.Context) error {
		op, err = watchOperation(ctx, cli, c, id)
		return err
	})
	if _, left := errors.AsType[exitStatus](err); left {
		fmt.Fprintf(cli.err, "space: interrupted; %s goes on — space op wait %s\n", what, id)
	}
	return op, err
}

func watchOperation(ctx context.Context, cli *cli, c *client.Client, id string) (*apiv1.Operation, error) {
	if !onTerminal(cli.err) {
		return c.WaitOperation(ctx, id)
	}
	start := time.Now()
	defer fmt.Fprint(cli.err, clearLine)
	for wait := time.Duration(0); ; wait = time.Second {
		op, err := c.Operation(ctx, id, client.Wait(wait))
		if err != nil || op.Ended() {
			return c.WaitOperation(ctx, id) // bears a restart of the server, and has the error of a failed operation
		}
		fmt.Fprintf(cli.err, "%s%s: %s, %d s", clearLine, op.Kind, plain(stepOf(op)), int(time.Since(start).Seconds()))
	}
}

// clearLine begins the terminal's line anew.
const clearLine = "\r\x1b[K"

func stepOf(op *apiv1.Operation) string {
	for _, step := range op.Steps {
		if step.State == "running" {
			return step.Name
		}
	}
	return op.State
}
