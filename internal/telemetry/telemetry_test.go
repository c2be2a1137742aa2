package telemetry_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/space-sandbox/space/internal/telemetry"
)

const example = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

func TestParseTrace(t *testing.T) {
	t.Parallel()
	for header, ok := range map[string]bool{
		example:                      true,
		"01" + example[2:]:           true,
		"01" + example[2:] + "-more": true,
		"":                           false,
		example + "-more":            false,
		"01" + example[2:] + "x":     false,
		"ff" + example[2:]:           false,
		strings.ToUpper(example):     false,
		"00-" + strings.Repeat("0", 32) + example[35:]: false,
		example[:36] + strings.Repeat("0", 16) + "-01": false,
		strings.ReplaceAll(example, "-", "_"):          false,
	} {
		trace, got := telemetry.ParseTrace(header)
		if got != ok || ok && trace.ID != example[3:35] || !ok && trace != (telemetry.Trace{}) {
			t.Errorf("%q: %+v, %t", header, trace, got)
		}
	}
}

func FuzzParseTrace(f *testing.F) {
	f.Add(example)
	f.Add("")
	f.Add("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x")
	form := regexp.MustCompile(`^00-[0-9a-f]{32}-[0-9a-f]{16}-01$`)
	f.Fuzz(func(t *testing.T, header string) {
		trace, ok := telemetry.ParseTrace(header)
		if !ok {
			return
		}
		if again, ok := telemetry.ParseTrace(trace.String()); !ok || again != trace || !form.MatchString(trace.String()) {
			t.Errorf("%q became %q", header, trace)
		}
	})
}

func TestTraced(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	logger := slog.New(telemetry.LogHandler(slog.NewTextHandler(&log, nil))).With("process", "x")
	var onward http.Header
	h := telemetry.Traced(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		logger.InfoContext(r.Context(), "hello")
		onward = http.Header{}
		telemetry.Inject(r.Context(), onward)
	}))
	for _, given := range []string{example, "nonsense"} {
		log.Reset()
		w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)
		r.Header.Set("traceparent", given)
		h.ServeHTTP(w, r)
		answered, ok := telemetry.ParseTrace(w.Header().Get("traceparent"))
		passed, ok2 := telemetry.ParseTrace(onward.Get("traceparent"))
		if !ok || !ok2 || answered.ID != passed.ID || (given == example) != (answered.ID == example[3:35]) {
			t.Errorf("%q: answered %v, passed on %v", given, answered, passed)
		}
		if onward.Get("traceparent") == given {
			t.Error("the call onward has the span of the call that came in")
		}
		if !strings.Contains(log.String(), "process=x trace_id="+answered.ID) {
			t.Errorf("log: %s", log.String())
		}
	}
	empty := http.Header{}
	telemetry.Inject(context.Background(), empty)
	if len(empty) != 0 {
		t.Errorf("without a trace: %v", empty)
	}
}

func registry(t *testing.T, name string, value float64) *prometheus.Registry {
	t.Helper()
	r := telemetry.NewRegistry()
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: "A count."}, []string{"kind"})
	r.MustRegister(c)
	c.WithLabelValues("a").Add(value)
	return r
}

func text(t *testing.T, r *prometheus.Registry) string {
	t.Helper()
	w := httptest.NewRecorder()
	telemetry.Handler(r).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	return w.Body.String()
}

func TestMerge(t *testing.T) {
	t.Parallel()
	var m telemetry.Merged
	own, err := registry(t, "space_sandboxes_made", 1).Gather()
	if err != nil {
		t.Fatal(err)
	}
	m.Add("control", own)
	ledger := "# TYPE space_ledger_objects gauge\nspace_ledger_objects{kind=\"tap\"} "
	if err := m.AddText("gateway", strings.NewReader(ledger+"98\n")); err != nil {
		t.Fatal(err)
	}
	theirs := text(t, registry(t, "space_node_things_total", 7)) + ledger + "3\n" +
		"# TYPE space_sandboxes_made counter\nspace_sandboxes_made{kind=\"forged\"} 99\n" +
		"# TYPE space_node_liar counter\nspace_node_liar{process=\"control\"} 99\n" +
		"# TYPE space_node_long counter\nspace_node_long{kind=\"" + strings.Repeat("x", 1000) + "\"} 99\n"
	if err := m.AddText("node", strings.NewReader(theirs)); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"nonsense{", strings.Repeat("# nothing\n", 1<<18)} {
		if err := m.AddText("gateway", strings.NewReader(bad)); err == nil {
			t.Errorf("%.20q was accepted", bad)
		}
	}
	var out bytes.Buffer
	if err := telemetry.Write(&out, m.Families()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`space_ledger_objects{kind="tap",process="node"} 3`, `space_sandboxes_made{kind="a"} 1`, `space_node_things_total{kind="a",process="node"} 7`,
		`go_goroutines{process="control"}`, `go_goroutines{process="node"}`} {
		if strings.Count(out.String(), want) != 1 {
			t.Errorf("%s is not there once", want)
		}
	}
	if strings.Contains(out.String(), "99") && strings.Contains(out.String(), "forged") || strings.Contains(out.String(), "liar") || strings.Contains(out.String(), "} 98") || strings.Contains(out.String(), "space_node_long") {
		t.Errorf("forged metrics: %s", out.String())
	}
}
