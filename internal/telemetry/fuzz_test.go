package telemetry_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/space-sandbox/space/internal/telemetry"
)

// A gateway or node that has been taken over may show anything as its metrics: what is passed on can be read by
// Prometheus, and claims to be of nobody else.
func FuzzMerge(f *testing.F) {
	for _, s := range []string{"# TYPE space_node_x counter\nspace_node_x 1\n", "space_node_x{a=\"b\\n\"} NaN\n", "go_x 1\ngo_x 2\n", "space_sandboxes 1\n",
		"# TYPE go_x histogram\ngo_x_bucket{le=\"1\"} 1\ngo_x_sum 1\ngo_x_count 1\n", "# HELP go_x \\\n", "{", "go_x{process=\"control\"} 1\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var m, again telemetry.Merged
		if m.AddText("node", strings.NewReader(text)) != nil {
			return
		}
		var out bytes.Buffer
		if err := telemetry.Write(&out, m.Families()); err != nil {
			t.Fatalf("%q spoils the metrics of all: %v", text, err)
		}
		if strings.Contains(out.String(), `process="control"`) {
			t.Errorf("%q speaks for control: %s", text, &out)
		}
		if err := again.AddText("gateway", &out); err != nil {
			t.Errorf("%q gave what cannot be read: %v", text, err)
		}
	})
}
