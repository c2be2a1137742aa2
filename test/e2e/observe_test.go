//go:build realvm

package e2e

import (
	"bytes"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
)

// TestObserved watches a real installation at work: one trace through all processes, the metrics of all of them in one
// place, a bundle for a bug report without its secrets.
func TestObserved(t *testing.T) {
	t.Parallel()
	i := install(t)
	i.start()
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	req, err := http.NewRequestWithContext(t.Context(), "POST", i.url+"/v1/sandboxes?wait=240",
		strings.NewReader(`{"template":"mini","name":"watched","memory_mib":256,"env":{"SECRET":"open-sesame"},"metadata":{"owner":"somebody-named"}}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+i.client.Key)
	req.Header.Set("Traceparent", "00-"+trace+"-00f067aa0ba902b7-01")
	res, err := new(http.Client).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if got := res.Header.Get("Traceparent"); res.StatusCode != 200 || !strings.Contains(got, trace) {
		t.Fatalf("create: %s, traceparent %q", res.Status, got)
	}
	for _, process := range []string{"control", "node", "gateway"} {
		i.eventually(10*time.Second, process+" logs under the trace", func() bool { // the log comes after the answer
			found := false
			for line := range strings.Lines(i.log.text()) {
				found = found || field(line, "process") == process && field(line, "trace_id") == trace
			}
			return found
		})
	}
	if got := i.sh("watched", "echo $SECRET"); got != "open-sesame\n" {
		t.Errorf("exec: %q", got)
	}
	t.Run("metrics", func(t *testing.T) { testMetrics(t, i) })
	t.Run("bundle", func(t *testing.T) { testBundle(t, i) })
	t.Run("completion", func(t *testing.T) {
		if out, err := i.space(t.Context(), "__complete", "rm", "wat"); err != nil || !strings.HasPrefix(out, "watched\n") {
			t.Errorf("%v: %s", err, out)
		}
	})
	i.delete("watched")
}

func testMetrics(t *testing.T, i *installation) {
	text, err := i.client.Metrics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`space_sandboxes{state="running"} 1`, `space_node_machines{process="node",state="running"} 1`,
		`space_node_step_seconds_count{process="node",step="boot"} 1`, `space_gateway_routes{process="gateway"} 1`,
		`space_operation_step_seconds_count{kind="create",step="machine"} 1`, `process_resident_memory_bytes{process="control"}`,
		`process_resident_memory_bytes{process="node"}`, `process_resident_memory_bytes{process="gateway"}`} {
		if !bytes.Contains(text, []byte(want)) {
			t.Errorf("no %s", want)
		}
	}
	i.killPart("gateway")
	i.eventually(readyTimeout, "the new gateway shows its metrics", func() bool {
		text, err := i.client.Metrics(t.Context())
		return err == nil && bytes.Contains(text, []byte(`space_scrape_up{process="gateway"} 1`)) && bytes.Contains(text, []byte(`space_gateway_routes{process="gateway"} 1`))
	})
}

func testBundle(t *testing.T, i *installation) {
	dir := t.TempDir()
	log := filepath.Join(dir, "up.log")
	if err := os.WriteFile(log, []byte(i.log.text()+"\nkey "+i.client.Key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// What the checks say is doctor's own test; here they may have warnings of this host.
	out, err := i.space(t.Context(), "doctor", "--listen", "127.0.0.1:0", "--data-listen", "127.0.0.1:0", "--bundle", dir+"/b.tar.gz", "--log", log)
	if !strings.Contains(out, "b.tar.gz is written") {
		t.Fatalf("%v: %s", err, out)
	}
	unpacked, err := exec.CommandContext(t.Context(), "tar", "xzOf", dir+"/b.tar.gz").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"name": "watched"`, `"kind": "create"`, `"phase": "running"`, `"pool_kind"`, "space_sandboxes", "msg=ready"} {
		if !bytes.Contains(unpacked, []byte(want)) {
			t.Errorf("the bundle has no %s", want)
		}
	}
	hash, err := os.ReadFile(filepath.Join(i.dir, "control", "admin.hash"))
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{i.client.Key, "open-sesame", "somebody-named", strings.TrimSpace(string(hash))} {
		if bytes.Contains(unpacked, []byte(secret)) {
			t.Errorf("the bundle has the secret %.8q…", secret)
		}
	}
}

// TestFirstSandboxExample runs the example against a real machine: interrupted, gone on with, deleted.
func TestFirstSandboxExample(t *testing.T) {
	t.Parallel()
	i := install(t)
	i.start()
	dir := t.TempDir()
	program := filepath.Join(dir, "first-sandbox")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "../../examples/first-sandbox").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	run := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), program, append([]string{"--dir", filepath.Join(dir, "run"), "--template", "mini"}, args...)...)
		cmd.Env = append(os.Environ(), "SPACE_URL="+i.url, "SPACE_API_KEY="+i.client.Key)
		return cmd
	}
	first := run("--", "sh", "-c", "echo run >>marks; echo before; until [ -e go ]; do sleep 0.1; done; echo after; cat marks")
	out, err := first.StdoutPipe()
	if err == nil {
		err = first.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	line := make([]byte, len("before\n"))
	if _, err := out.Read(line); err != nil || string(line) != "before\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if err := first.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := first.Wait(); first.ProcessState.ExitCode() != 130 {
		t.Errorf("after Ctrl-C: %v", err)
	}
	boxes, err := i.client.ListSandboxes(t.Context(), client.SandboxQuery{})
	if err != nil || len(boxes.Items) != 1 {
		t.Fatalf("%+v, %v", boxes, err)
	}
	if res := i.exec(boxes.Items[0].ID, apiv1.Exec{Argv: []string{"touch", "go"}}); res.ExitCode == nil || *res.ExitCode != 0 {
		t.Fatalf("%+v", res)
	}
	second := run("--cleanup", "delete")
	if got, err := second.Output(); err != nil || string(got) != "after\nrun\n" {
		t.Errorf("the second run: %q, %v", got, err)
	}
	if boxes, err := i.client.ListSandboxes(t.Context(), client.SandboxQuery{}); err != nil || len(boxes.Items) != 0 {
		t.Errorf("not deleted: %+v, %v", boxes, err)
	}
}
