package control_test

import (
	"bytes"
	"context"
	"sync/atomic"
	"testing"

	"github.com/space-sandbox/space/internal/sandbox"
)

// TestExecOverAPause: calls that are refused because the sandbox is paused are made again when it goes on. Each byte
// arrives once, and the result is whole.
func TestExecOverAPause(t *testing.T) {
	t.Parallel()
	for _, paused := range []string{"WriteStdin", "WriteStdin after", "GetProcess", "ReadOutput"} {
		t.Run(paused, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			box := w.running(sandbox.Spec{})
			var refused, written atomic.Int64
			w.gw.setHook(func(_ context.Context, call, _ string) error {
				if paused == "ReadOutput" && call == "FollowOutput" { // an exec that is followed reads nothing besides
					return sandbox.Errorf(sandbox.CodeUnavailable, "no streams")
				}
				refuse := call == paused && refused.Add(1) <= 3
				if paused == "GetProcess" && call == "WriteStdin" { // that is when it is asked for
					refuse = written.Add(1) == 2
				}
				if refuse {
					return &sandbox.Error{Code: sandbox.CodeInvalidState, Message: "the sandbox is paused"}
				}
				return nil
			})
			input := bytes.Repeat([]byte("0123456789"), 20000)
			res, err := w.c.Exec(t.Context(), w.call(), string(box.ID), sandbox.CommandSpec{Argv: []string{"cat"}}, input)
			if err != nil || !bytes.Equal(res.Stdout, input) || *res.Command.ExitCode != 0 {
				t.Errorf("%d bytes of %d, %+v %v", len(res.Stdout), len(input), res.Command, err)
			}
			if n := refused.Load(); n < 3 {
				t.Errorf("refused %d times", n)
			}
		})
	}
}

// TestExecDoesNotWaitForEver: who gives up waiting gets an error, since the output was not read.
func TestExecDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	box := w.running(sandbox.Spec{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w.gw.setHook(func(_ context.Context, call, _ string) error {
		switch call {
		case "FollowOutput":
			return sandbox.Errorf(sandbox.CodeUnavailable, "no streams")
		case "ReadOutput":
			cancel()
			return &sandbox.Error{Code: sandbox.CodeInvalidState, Message: "the sandbox is paused"}
		}
		return nil
	})
	if _, err := w.c.Exec(ctx, w.call(), string(box.ID), sandbox.CommandSpec{Argv: []string{"true"}}, nil); err == nil {
		t.Error("it has the output")
	}
}
