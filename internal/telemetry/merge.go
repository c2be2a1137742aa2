package telemetry

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// processLabel tells the metrics of the processes apart.
const processLabel = "process"

// Bounds of what another process may show.
const (
	maxMetricsBytes = 1 << 20
	maxLabelBytes   = 128
)

// Merged is the metrics of several processes. What does not say by its name whose it is has the label process.
type Merged struct{ families map[string]*dto.MetricFamily }

// Add takes over the process's own metrics, as they are but for those of its runtime, which get the label. Call it
// first: what it adds nobody else can change.
func (m *Merged) Add(process string, families []*dto.MetricFamily) {
	for _, f := range families {
		label := process
		if strings.HasPrefix(f.GetName(), "space_") {
			label = ""
		}
		m.add(label, f)
	}
}

// AddText takes over what another process shows in the text form: only metrics of its own (space_<process>_…; node's
// ledger), of its runtime and of the process itself, and only as much as is sensible, for that process may have been taken over.
func (m *Merged) AddText(process string, r io.Reader) error {
	limited := &io.LimitedReader{R: r, N: maxMetricsBytes + 1}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(limited)
	if limited.N <= 0 {
		return fmt.Errorf("metrics of %s: more than %d bytes", process, maxMetricsBytes)
	}
	if err != nil {
		return fmt.Errorf("metrics of %s: %w", process, err)
	}
	for _, name := range slices.Sorted(maps.Keys(families)) {
		f := families[name]
		if !belongs(process, name) || !sensible(f) || Write(io.Discard, []*dto.MetricFamily{f}) != nil {
			continue
		}
		m.add(process, f)
	}
	return nil
}

func belongs(process, name string) bool {
	for _, prefix := range []string{"space_" + process + "_", "go_", "process_"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return process == "node" && strings.HasPrefix(name, "space_ledger_")
}

func sensible(f *dto.MetricFamily) bool {
	for _, metric := range f.Metric {
		for _, l := range metric.Label {
			if len(l.GetValue()) > maxLabelBytes || l.GetName() == processLabel {
				return false
			}
		}
	}
	return true
}

// add puts the metrics of a family under its name; one that another process has with another type is left out.
func (m *Merged) add(process string, f *dto.MetricFamily) {
	if m.families == nil {
		m.families = map[string]*dto.MetricFamily{}
	}
	all := m.families[f.GetName()]
	if all == nil {
		all = &dto.MetricFamily{Name: f.Name, Help: f.Help, Type: f.Type, Unit: f.Unit}
		m.families[f.GetName()] = all
	} else if all.GetType() != f.GetType() {
		return
	}
	for _, metric := range f.Metric {
		copied := &dto.Metric{Label: slices.Clone(metric.Label), Gauge: metric.Gauge, Counter: metric.Counter, Summary: metric.Summary,
			Untyped: metric.Untyped, Histogram: metric.Histogram, TimestampMs: metric.TimestampMs}
		if process != "" {
			name := processLabel
			copied.Label = append(copied.Label, &dto.LabelPair{Name: &name, Value: &process})
		}
		slices.SortFunc(copied.Label, func(a, b *dto.LabelPair) int { return strings.Compare(a.GetName(), b.GetName()) })
		all.Metric = append(all.Metric, copied)
	}
}

// Families returns everything in the order of the names.
func (m *Merged) Families() []*dto.MetricFamily {
	var out []*dto.MetricFamily
	for _, name := range slices.Sorted(maps.Keys(m.families)) {
		out = append(out, m.families[name])
	}
	return out
}
