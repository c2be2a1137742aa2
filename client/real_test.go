package client_test

import (
	"io"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
	"github.com/space-sandbox/space/internal/spacetest"
)

// The SDK against all three parts of SPACE, which are restarted while a command echoes its input: every byte arrives
// once.
func TestAttachOverRestarts(t *testing.T) {
	t.Parallel()
	i := spacetest.Start(t)
	made, err := i.Client.CreateSandbox(t.Context(), apiv1.CreateSandbox{Template: "tiny"}, client.Wait(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	cmd, err := i.Client.CreateCommand(t.Context(), made.Sandbox.ID, apiv1.CreateCommand{Argv: []string{"cat"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	stdout := newBuffer()
	a, err := i.Client.Attach(t.Context(), cmd.ID, client.AttachOptions{Stdout: stdout, Token: &cmd.Attach})
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Repeat("0123456789abcde\n", 256<<10) // 4 MiB
	written := make(chan error, 1)
	go func() {
		_, err := io.WriteString(a, want)
		a.CloseStdin()
		written <- err
	}()
	for n, restart := range []func(){
		func() { i.Stop("gateway"); i.StartGateway() },
		func() { i.Stop("control"); i.StartControl() },
		func() { i.Stop("gateway"); i.Stop("control"); i.StartGateway(); i.StartControl() },
	} {
		stdout.await(t, func(s string) bool { return len(s) > n<<20 })
		restart()
	}
	if err := <-written; err != nil {
		t.Error(err)
	}
	if code := exitCode(t, a); code != 0 || stdout.String() != want {
		t.Errorf("exit code %d, %d bytes of %d", code, len(stdout.String()), len(want))
	}
}

func TestFilesForReal(t *testing.T) {
	t.Parallel()
	i := spacetest.Start(t)
	made, err := i.Client.CreateSandbox(t.Context(), apiv1.CreateSandbox{Template: "tiny"}, client.Wait(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	box := made.Sandbox.ID
	w, err := i.Client.WriteFile(t.Context(), box, "a/b/run.sh", strings.NewReader("#!/bin/sh\necho it runs\n"), client.FileOptions{Mode: 0o755, CreateParents: true})
	if err != nil || w.SizeBytes != 23 || len(w.SHA256) != 64 {
		t.Fatalf("%+v, %v", w, err)
	}
	res, err := i.Client.Exec(t.Context(), box, apiv1.Exec{Argv: []string{w.Path}})
	if err != nil || res.Stdout != "it runs\n" {
		t.Errorf("%+v, %v", res, err)
	}
	if _, err := i.Client.WriteFile(t.Context(), box, "none/x", strings.NewReader("x"), client.FileOptions{}); !client.IsNotFound(err) {
		t.Errorf("%v", err)
	}
}
