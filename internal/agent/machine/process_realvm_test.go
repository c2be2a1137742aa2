//go:build realvm

package machine_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
)

// probeImage is a root with nothing in it but the program testdata/probe, and what files adds.
func probeImage(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(dir, "probe"), "./testdata/probe")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the probe: %v: %s", err, out)
	}
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// processID makes the id of a test's n-th process.
func processID(n int) string { return fmt.Sprintf("proc_%020d", n) }

// spawn starts the probe and returns at once.
func (g *guest) spawn(t *testing.T, args ...string) string {
	t.Helper()
	id := processID(int(g.processes.Add(1)))
	_, err := g.agent.CreateProcess(t.Context(), connect.NewRequest(&agentv1.CreateProcessRequest{
		ProcessId: id, Spec: &agentv1.ProcessSpec{Argv: append([]string{"/probe"}, args...)}}))
	if err != nil {
		t.Fatalf("create %v: %v", args, err)
	}
	res, err := g.agent.StartProcess(t.Context(), connect.NewRequest(&agentv1.StartProcessRequest{ProcessId: id}))
	if err != nil {
		t.Fatalf("start %v: %v", args, err)
	}
	if p := res.Msg.Process; p.State == agentv1.ProcessState_PROCESS_STATE_FAILED {
		t.Fatalf("start %v: %s: %s", args, p.ErrorCode, p.ErrorMessage)
	}
	return id
}

// finish waits for a process and returns its output and how it ended.
func (g *guest) finish(t *testing.T, id string) (string, *agentv1.Process) {
	t.Helper()
	stream, err := g.agent.Attach(t.Context(), connect.NewRequest(&agentv1.AttachRequest{
		ProcessId: id, Follow: true, Positions: []*agentv1.StreamPosition{
			{Stream: agentv1.OutputStream_OUTPUT_STREAM_STDOUT}, {Stream: agentv1.OutputStream_OUTPUT_STREAM_STDERR}}}))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	var output strings.Builder
	for stream.Receive() {
		if data := stream.Msg().GetData(); data != nil {
			output.Write(data.Data)
		}
		if ended := stream.Msg().GetExit(); ended != nil {
			return output.String(), ended
		}
	}
	t.Fatalf("attach ended early: %v", stream.Err())
	return "", nil
}

// run runs the probe to its end.
func (g *guest) run(t *testing.T, args ...string) string {
	t.Helper()
	output, ended := g.finish(t, g.spawn(t, args...))
	if ended.ExitCode != 0 {
		t.Fatalf("probe %v: exit code %d, signal %q: %s", args, ended.ExitCode, ended.Signal, output)
	}
	return output
}

// report reads files as a process in the guest sees them.
func (g *guest) report(t *testing.T, paths ...string) map[string]string {
	t.Helper()
	var files map[string]string
	if err := json.Unmarshal([]byte(g.run(t, append([]string{"report"}, paths...)...)), &files); err != nil {
		t.Fatal(err)
	}
	return files
}
