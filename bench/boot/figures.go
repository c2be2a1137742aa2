package main

import "slices"

// figure is what is said of one kind of measurement, in milliseconds.
type figure struct {
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
	P99 float64 `json:"p99"`
	Min float64 `json:"min"`
	Max float64 `json:"max"`
	N   int     `json:"n"`
}

// measurements are by name.
type measurements map[string][]float64

func (m measurements) add(prefix string, stages map[string]float64) {
	for name, ms := range stages {
		m[prefix+name] = append(m[prefix+name], ms)
	}
}

func (m measurements) figures() map[string]figure {
	out := make(map[string]figure, len(m))
	for name, values := range m {
		sorted := slices.Sorted(slices.Values(values))
		out[name] = figure{P50: quantile(sorted, 0.50), P95: quantile(sorted, 0.95), P99: quantile(sorted, 0.99),
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
