package spacetest_test

import (
	"bufio"
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
	"github.com/space-sandbox/space/internal/spacetest"
)

func create(t *testing.T, i *spacetest.Installation) apiv1.Sandbox {
	t.Helper()
	res, err := i.Client.CreateSandbox(t.Context(), apiv1.CreateSandbox{Template: "tiny"}, client.Wait(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if res.Sandbox.State != "running" || res.Sandbox.Isolation != "none" {
		t.Fatalf("sandbox is %s with isolation %q", res.Sandbox.State, res.Sandbox.Isolation)
	}
	return res.Sandbox
}

func remove(t *testing.T, i *spacetest.Installation, id string) {
	t.Helper()
	res, err := i.Client.DeleteSandbox(t.Context(), id, client.Wait(time.Minute))
	if err != nil || res.Operation.State != "succeeded" {
		t.Fatalf("delete: %+v, %v", res, err)
	}
	if left := i.Left(); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
}

// TestWholeWay goes through all three parts: create, exec, files, delete.
func TestWholeWay(t *testing.T) {
	t.Parallel()
	i := spacetest.Start(t)
	box := create(t, i)
	res, err := i.Client.Exec(t.Context(), box.ID, apiv1.Exec{Argv: []string{"sh", "-c", "echo hello; exit 5"}})
	if err != nil || res.Stdout != "hello\n" || res.ExitCode == nil || *res.ExitCode != 5 {
		t.Errorf("exec: %+v, %v", res, err)
	}
	if _, err := i.Client.WriteFile(t.Context(), box.ID, "note.txt", strings.NewReader("text"), client.FileOptions{}); err != nil {
		t.Errorf("write: %v", err)
	}
	if _, err := i.Client.ReadFile(t.Context(), box.ID, "missing.txt", client.FileOptions{}); client.Code(err) != "not_found" {
		t.Errorf("a missing file: %v", err)
	}
	remove(t, i, box.ID)
}

// TestRestarts restarts each part while a command runs; output goes on where it was and the exit code arrives.
func TestRestarts(t *testing.T) {
	t.Parallel()
	i := spacetest.Start(t)
	box := create(t, i)
	cmd, err := i.Client.CreateCommand(t.Context(), box.ID, apiv1.CreateCommand{Start: true, Stdin: true,
		Argv: []string{"sh", "-c", "n=0; while read line; do n=$((n+1)); echo $n; done; exit 9"}})
	if err != nil {
		t.Fatal(err)
	}
	var stdin uint64
	offset, want := uint64(0), 0
	for step, restart := range []func(){
		func() {},
		func() { i.Stop("control"); i.StartControl() },
		func() { i.Stop("gateway"); i.StartGateway() },
		func() { i.Stop("node"); i.StartNode() },
	} {
		restart()
		t.Log("step", step)
		stdin = writeLine(t, i, cmd.ID, stdin)
		want++
		offset = readLine(t, i, cmd.ID, offset, want)
	}
	if _, err := i.Client.WriteStdin(t.Context(), cmd.ID, strings.NewReader(""), client.StdinOptions{EOF: true}); err != nil {
		t.Fatal(err)
	}
	got, err := i.Client.WaitCommand(t.Context(), cmd.ID)
	if err != nil || got.ExitCode == nil || *got.ExitCode != 9 || got.StdoutBytes != offset {
		t.Errorf("exit: %+v, %v; read %d bytes", got, err, offset)
	}
	remove(t, i, box.ID)
}

// writeLine sends one line, again until the parts are back.
func writeLine(t *testing.T, i *spacetest.Installation, id string, at uint64) uint64 {
	t.Helper()
	for {
		n, err := i.Client.WriteStdin(t.Context(), id, strings.NewReader("x\n"), client.StdinOptions{Offset: &at})
		if err == nil {
			return n
		}
		if !client.IsRetryable(err) || t.Context().Err() != nil {
			t.Fatalf("stdin: %v", err)
		}
	}
}

// readLine reads the line that says n, from offset.
func readLine(t *testing.T, i *spacetest.Installation, id string, offset uint64, n int) uint64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for {
		line, err := tryLine(ctx, i, id, offset)
		if err == nil {
			if line != fmt.Sprintln(n) {
				t.Fatalf("at offset %d: %q, want line %d", offset, line, n)
			}
			return offset + uint64(len(strconv.Itoa(n))) + 1
		}
		if ctx.Err() != nil {
			t.Fatalf("line %d: %v", n, err)
		}
	}
}

func tryLine(ctx context.Context, i *spacetest.Installation, id string, offset uint64) (string, error) {
	token, err := i.Client.AttachToken(ctx, id)
	if err != nil {
		return "", err
	}
	out, err := i.Client.Output(ctx, id, token, client.OutputOptions{Stream: "stdout", Offset: offset, Follow: true})
	if err != nil {
		return "", err
	}
	defer out.Close()
	return bufio.NewReader(out).ReadString('\n')
}
