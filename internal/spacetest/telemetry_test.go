package spacetest_test

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
	"github.com/space-sandbox/space/internal/spacetest"
)

// TestOneTrace follows the trace of a client's create into the logs of all three processes.
func TestOneTrace(t *testing.T) {
	t.Parallel()
	i := spacetest.Start(t)
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	req, err := http.NewRequestWithContext(t.Context(), "POST", i.Client.BaseURL+"/v1/sandboxes?wait=60", strings.NewReader(`{"template":"tiny"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+i.Key)
	req.Header.Set("Traceparent", "00-"+id+"-00f067aa0ba902b7-01")
	res, err := new(http.Client).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if got := res.Header.Get("Traceparent"); res.StatusCode != 200 || !strings.Contains(got, id) {
		t.Errorf("%s, traceparent %q", res.Status, got)
	}
	for _, process := range []string{"control", "node", "gateway"} {
		awaitLine(t, i, "process="+process+" ", "trace_id="+id)
	}
}

// awaitLine waits for a line of the log that has all of these: the log comes after the answer.
func awaitLine(t *testing.T, i *spacetest.Installation, parts ...string) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		for line := range strings.Lines(i.Log()) {
			if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) }) {
				return
			}
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("no line has %q:\n%s", parts, i.Log())
		}
	}
}

func metrics(t *testing.T, i *spacetest.Installation) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", i.Client.BaseURL+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+i.Key)
	res, err := new(http.Client).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != 200 {
		t.Fatalf("%s %v %s", res.Status, err, body)
	}
	return string(body)
}

// TestMetricsOfAll reads the metrics of all processes in one place, and with one of them dead.
func TestMetricsOfAll(t *testing.T) {
	t.Parallel()
	i := spacetest.Start(t)
	box := create(t, i)
	res, err := i.Client.Exec(t.Context(), box.ID, apiv1.Exec{Argv: []string{"echo", "hello"}})
	if err != nil || res.Stdout != "hello\n" {
		t.Fatalf("%+v, %v", res, err)
	}
	if _, err := i.Client.WriteFile(t.Context(), box.ID, "a", strings.NewReader("12345"), client.FileOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitLine(t, i, "operation ended", box.ID) // an operation is counted before that is logged, and after the answer
	text := metrics(t, i)
	for _, want := range []string{`space_sandboxes{state="running"} 1`, `space_operation_step_seconds_count{kind="create",step="machine"} 1`,
		`space_node_step_seconds_count{process="node",step="boot"} 1`, `space_node_machines{process="node",state="running"} 1`,
		`space_gateway_routes{process="gateway"} 1`, `space_gateway_bytes_total{direction="in",kind="raw",process="gateway"} 5`,
		`space_gateway_call_seconds_count{code="ok",procedure="/space.gateway.v1.GatewayService/AwaitReady",process="gateway"} 1`,
		`space_scrape_up{process="node"} 1`, `go_goroutines{process="gateway"}`, `process_resident_memory_bytes{process="node"}`} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s", want)
		}
	}
	cmd, err := i.Client.CreateCommand(t.Context(), box.ID, apiv1.CreateCommand{Argv: []string{"cat"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	a, err := i.Client.Attach(t.Context(), cmd.ID, client.AttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if text := metrics(t, i); !strings.Contains(text, `space_gateway_attach_streams{process="gateway"} 1`) {
		t.Error("the attached stream does not count")
	}
	a.CloseStdin()
	if _, err := a.Wait(); err != nil {
		t.Error(err)
	}
	for !strings.Contains(metrics(t, i), `space_gateway_attach_streams{process="gateway"} 0`) {
		// the gateway closes the stream a moment after the client has its end
	}
	i.Stop("node")
	text = metrics(t, i)
	if !strings.Contains(text, `space_scrape_up{process="node"} 0`) || strings.Contains(text, `space_node_machines`) || !strings.Contains(text, `space_gateway_routes{`) {
		t.Errorf("without node:\n%s", text)
	}
	i.StartNode()
}
