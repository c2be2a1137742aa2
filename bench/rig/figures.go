package rig

import "slices"

// Result is the last line that a benchmark prints.
type Result struct {
	Bench      string             `json:"bench"`
	Conditions map[string]any     `json:"conditions"`
	Figures    any                `json:"figures"` // by name; a Figure, or a plain number
	Ratios     map[string]float64 `json:"ratios"`  // only those that have a limit
}

// Figure is what is said of one kind of measurement, in milliseconds.
type Figure struct {
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
	P99 float64 `json:"p99"`
	Min float64 `json:"min"`
	Max float64 `json:"max"`
	N   int     `json:"n"`
}

// Measurements are milliseconds by name. Not safe for concurrent use.
type Measurements map[string][]float64

// Add notes one measurement of each stage.
func (m Measurements) Add(prefix string, stages map[string]float64) {
	for name, ms := range stages {
		m[prefix+name] = append(m[prefix+name], ms)
	}
}

// Figures sums up every name.
func (m Measurements) Figures() map[string]Figure {
	out := make(map[string]Figure, len(m))
	for name, values := range m {
		sorted := slices.Sorted(slices.Values(values))
		out[name] = Figure{P50: quantile(sorted, 0.50), P95: quantile(sorted, 0.95), P99: quantile(sorted, 0.99),
			Min: sorted[0], Max: sorted[len(sorted)-1], N: len(sorted)}
	}
	return out
}

// quantile interpolates between the two nearest of sorted values.
func quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	low := int(at)
	high := min(low+1, len(sorted)-1)
	return sorted[low] + (sorted[high]-sorted[low])*(at-float64(low))
}
