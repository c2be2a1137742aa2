package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
)

// What is done with the sandbox at the end.
const (
	keep   = "keep"
	pause  = "pause"
	remove = "delete"
)

// runner takes one run as far as it goes.
type runner struct {
	client   *client.Client
	dir      string
	template string
	argv     []string // nil: demo, or what the run began with
	cleanup  string   // keep, pause, delete, or "" to ask
	in       *bufio.Reader
	out, err io.Writer

	state state
}

// demo counts, so that there is time to interrupt it.
func demo() []string {
	return []string{"sh", "-c", `echo "hello from $(uname -sr)"; for i in 1 2 3 4 5; do echo "step $i of 5"; sleep 1; done`}
}

// run does all that is still to be done and returns the exit code of the command.
func (r *runner) run(ctx context.Context) (code int, err error) {
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return 0, err
	}
	var found bool
	if r.state, found, err = loadState(r.dir); err != nil {
		return 0, err
	}
	if found {
		if len(r.argv) > 0 && !slices.Equal(r.argv, r.state.Argv) {
			return 0, fmt.Errorf("%s remembers a run of another command; choose another directory with --dir", r.dir)
		}
		fmt.Fprintf(r.err, "Going on with run %s\n", r.state.Run)
	} else {
		r.state.Argv = r.argv
		if len(r.argv) == 0 {
			r.state.Argv = demo()
		}
		if err := r.state.save(r.dir); err != nil {
			return 0, err
		}
	}
	for _, step := range []func(context.Context) error{r.create, r.wait, r.resume, r.command, r.attach, r.end} {
		if err := step(ctx); err != nil {
			return 0, err
		}
	}
	return r.exitCode(), nil
}

// create asks for the sandbox: accepted is not ready.
func (r *runner) create(ctx context.Context) error {
	if r.state.SandboxID != "" {
		return nil
	}
	made, err := r.client.CreateSandbox(ctx, apiv1.CreateSandbox{Template: r.template, Name: "first-" + r.state.Run,
		Metadata: map[string]string{"run": r.state.Run}}, client.IdempotencyKey("create-"+r.state.Run))
	if err != nil {
		return err
	}
	r.state.SandboxID, r.state.OperationID = made.Sandbox.ID, made.Operation.ID
	fmt.Fprintf(r.err, "Sandbox %s is accepted (operation %s)\n", r.state.SandboxID, r.state.OperationID)
	return r.state.save(r.dir)
}

// wait returns when the sandbox is ready.
func (r *runner) wait(ctx context.Context) error {
	if r.state.Ready {
		return nil
	}
	op, err := r.client.WaitOperation(ctx, r.state.OperationID)
	if err != nil {
		return err
	}
	for _, step := range op.Steps {
		if step.MS != nil {
			fmt.Fprintf(r.err, "  %-20s %7.0f ms\n", step.Name, *step.MS)
		}
	}
	fmt.Fprintln(r.err, "It is ready")
	r.state.Ready = true
	return r.state.save(r.dir)
}

// resume lets a sandbox go on that the last run has paused. It needs no key: one that runs already is left so.
func (r *runner) resume(ctx context.Context) error {
	if r.state.Cleanup != pause {
		return nil
	}
	woken, err := r.client.ResumeSandbox(ctx, r.state.SandboxID)
	if err != nil {
		return err
	}
	if _, err := r.client.WaitOperation(ctx, woken.Operation.ID); err != nil {
		return err
	}
	fmt.Fprintln(r.err, "The sandbox goes on where it was paused")
	r.state.Cleanup = ""
	return r.state.save(r.dir)
}

// command makes the session. Its process runs from the first attach.
func (r *runner) command(ctx context.Context) error {
	if r.state.CommandID != "" {
		return nil
	}
	made, err := r.client.CreateCommand(ctx, r.state.SandboxID, apiv1.CreateCommand{Argv: r.state.Argv},
		client.IdempotencyKey("command-"+r.state.Run))
	if err != nil {
		return err
	}
	r.state.CommandID = made.ID
	return r.state.save(r.dir)
}

// attach follows the output to its end, from where the files end.
func (r *runner) attach(ctx context.Context) (err error) {
	if r.state.Result != nil {
		return nil
	}
	stdout, stdoutSize, err := openTranscript(r.dir, "stdout")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stdout.Close()) }()
	stderr, stderrSize, err := openTranscript(r.dir, "stderr")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stderr.Close()) }()
	a, err := r.client.Attach(ctx, r.state.CommandID, client.AttachOptions{
		Stdout: io.MultiWriter(stdout, r.out), StdoutOffset: stdoutSize + r.state.StdoutMissing,
		Stderr: io.MultiWriter(stderr, r.err), StderrOffset: stderrSize + r.state.StderrMissing,
		OnGap: r.missed,
	})
	if err != nil {
		return err
	}
	exit, err := a.Wait()
	if err != nil {
		return err
	}
	r.state.Result = &result{State: exit.State, ExitCode: exit.ExitCode, Signal: exit.Signal}
	if exit.Error != nil {
		r.state.Result.Error = exit.Error.Code + ": " + exit.Error.Message
	}
	return r.state.save(r.dir)
}

// missed is told of bytes that are gone. They count as read.
func (r *runner) missed(channel byte, from, to uint64) {
	missing := &r.state.StdoutMissing
	if channel == apiv1.ChannelStderr {
		missing = &r.state.StderrMissing
	}
	*missing += to - from
	fmt.Fprintf(r.err, "first-sandbox: %d bytes of output are missing\n", to-from)
	if err := r.state.save(r.dir); err != nil {
		fmt.Fprintln(r.err, "first-sandbox: the gap could not be remembered:", err)
	}
}

// end shows the result and keeps, pauses or deletes the sandbox. Some output is not success: the exit code is.
func (r *runner) end(ctx context.Context) error {
	fmt.Fprintf(r.err, "The command %s\n", r.state.Result)
	if r.state.Cleanup == remove {
		fmt.Fprintln(r.err, "The sandbox is deleted; a new directory begins a new run")
		return nil
	}
	cleanup := r.cleanup
	if cleanup == "" {
		cleanup = ask(r.in, r.err)
	}
	var err error
	switch cleanup {
	case remove:
		err = r.remove(ctx)
	case pause:
		err = r.pause(ctx)
	default:
		fmt.Fprintf(r.err, "It is kept: space exec %s -- …, and space rm %s when you are done\n", r.state.SandboxID, r.state.SandboxID)
	}
	if err != nil {
		return err
	}
	r.state.Cleanup = cleanup
	return r.state.save(r.dir)
}

// pause stops the sandbox where it stands; the next run resumes it.
func (r *runner) pause(ctx context.Context) error {
	asleep, err := r.client.PauseSandbox(ctx, r.state.SandboxID)
	if err != nil {
		return err
	}
	if _, err := r.client.WaitOperation(ctx, asleep.Operation.ID); err != nil {
		return err
	}
	fmt.Fprintf(r.err, "It is paused: run this again, or space resume %s, to go on\n", r.state.SandboxID)
	return nil
}

func (r *runner) remove(ctx context.Context) error {
	gone, err := r.client.DeleteSandbox(ctx, r.state.SandboxID, client.IdempotencyKey("delete-"+r.state.Run))
	if client.IsNotFound(err) {
		return nil // somebody else has done it
	}
	if err != nil {
		return err
	}
	if _, err := r.client.WaitOperation(ctx, gone.Operation.ID); err != nil {
		return err
	}
	fmt.Fprintln(r.err, "The sandbox is deleted")
	return nil
}

// exitCode is the command's where it has one.
func (r *runner) exitCode() int {
	if code := r.state.Result.ExitCode; code != nil && *code >= 0 {
		return *code
	}
	return 1
}

// String says how the command ended.
func (r *result) String() string {
	switch {
	case r.Error != "":
		return r.State + ": " + r.Error
	case r.Signal != "":
		return "was ended by " + r.Signal
	case r.ExitCode != nil:
		return fmt.Sprintf("has ended with exit code %d", *r.ExitCode)
	}
	return "is " + r.State
}
