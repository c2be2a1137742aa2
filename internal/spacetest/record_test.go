package spacetest_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
	"github.com/space-sandbox/space/internal/spacetest"
)

// transcript reads what was recorded, by stream, and the result.
func transcript(t *testing.T, i *spacetest.Installation, id string) (said map[string]string, result *apiv1.TranscriptEntry) {
	t.Helper()
	tr, err := i.Client.Transcript(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	said = map[string]string{}
	for {
		e, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return said, result
		}
		if err != nil {
			t.Fatal(err)
		}
		if e.Type == apiv1.TranscriptResult {
			result = &e
			continue
		}
		if uint64(len(said[e.Stream])) != e.Offset {
			t.Fatalf("%s at %d after %d bytes", e.Stream, e.Offset, len(said[e.Stream]))
		}
		said[e.Stream] += string(e.Data)
	}
}

// eventually waits for the transcript's end.
func recorded(t *testing.T, i *spacetest.Installation, id string) (map[string]string, apiv1.TranscriptEntry) {
	t.Helper()
	for t.Context().Err() == nil {
		if said, result := transcript(t, i, id); result != nil {
			return said, *result
		}
	}
	t.Fatal("no result")
	return nil, apiv1.TranscriptEntry{}
}

// TestRecord records a session over restarts of control and the gateway, and reads it when the sandbox is gone.
func TestRecord(t *testing.T) {
	t.Parallel()
	i := spacetest.Start(t)
	box := create(t, i)
	cmd, err := i.Client.CreateCommand(t.Context(), box.ID, apiv1.CreateCommand{Start: true, Stdin: true, Record: true,
		Argv: []string{"sh", "-c", "while read line; do echo $line; done; echo err >&2; exit 9"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, restart := range []func(){
		func() {},
		func() { i.Stop("control"); i.StartControl() },
		func() { i.Stop("gateway"); i.StartGateway() },
	} {
		restart()
		for {
			_, err := i.Client.WriteStdin(t.Context(), cmd.ID, strings.NewReader("line\n"), client.StdinOptions{})
			if err == nil {
				break
			}
			if !client.IsRetryable(err) || t.Context().Err() != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := i.Client.WriteStdin(t.Context(), cmd.ID, strings.NewReader(""), client.StdinOptions{EOF: true}); err != nil {
		t.Fatal(err)
	}
	recorded(t, i, cmd.ID)
	running, err := i.Client.CreateCommand(t.Context(), box.ID, apiv1.CreateCommand{Start: true, Record: true,
		PTY: &apiv1.PTY{Cols: 80, Rows: 24}, Argv: []string{"sh", "-c", "echo shown; exec sleep 1000"}})
	if err != nil {
		t.Fatal(err)
	}
	for t.Context().Err() == nil {
		if said, _ := transcript(t, i, running.ID); said["pty"] != "" {
			break
		}
	}
	remove(t, i, box.ID)
	said, result := recorded(t, i, cmd.ID)
	if said["stdout"] != "line\nline\nline\n" || said["stderr"] != "err\n" || result.State != "exited" || *result.ExitCode != 9 || result.SandboxID != box.ID {
		t.Errorf("said %q, result %+v", said, result)
	}
	said, result = recorded(t, i, running.ID)
	if said["pty"] != "shown\r\n" || result.State != "lost" {
		t.Errorf("one that ran when the sandbox was deleted: said %q, result %+v", said, result)
	}
}
