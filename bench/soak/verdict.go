package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// rule says how it is decided whether something grows.
func rule(settle time.Duration) string {
	memory := "8 MiB or 15 %"
	if settle < holdTime {
		memory = "64 MiB"
	}
	return "after each round, when nothing lives, the lowest of six looks counts; the median (of heaps: the lowest value) of " +
		"the last quarter of the rounds may be above that of the second quarter by: memory " + memory + ", goroutines, " +
		"descriptors and threads 5, ledger 0; drift must be 0 at all times"
}

// held is what became of one thing.
type held struct {
	First   float64 `json:"first"`
	Early   float64 `json:"early"` // of the second quarter: the median, of heaps the lowest
	Late    float64 `json:"late"`  // of the last quarter
	Max     float64 `json:"max"`
	Allowed float64 `json:"allowed"` // of late above early
	PerLife float64 `json:"per_thousand_lives"`
	Flat    bool    `json:"flat"`
}

// judge applies the rule to every series.
func judge(series map[string][]float64, lives int, settle time.Duration) map[string]held {
	out := map[string]held{}
	for name, values := range series {
		h := held{First: values[0], Max: slices.Max(values)}
		typical := median
		if strings.HasSuffix(name, "heap_kib") { // between two collections it rises to twice of what is alive
			typical = slices.Min[[]float64]
		}
		h.Early, h.Late = typical(quarter(values, 1)), typical(quarter(values, 3))
		h.Allowed = allowed(name, h.Early, settle)
		h.Flat = h.Late-h.Early <= h.Allowed
		if name == "ledger drift" {
			h.Flat = h.Max == 0
		}
		// Between the middles of the two quarters lies half of all lives.
		h.PerLife = (h.Late - h.Early) / (float64(lives) / 2) * 1000
		out[name] = h
	}
	return out
}

func allowed(name string, early float64, settle time.Duration) float64 {
	switch {
	case strings.HasPrefix(name, "ledger "):
		return 0
	case strings.HasSuffix(name, "_kib") && settle < holdTime:
		return 64 << 10
	case strings.HasSuffix(name, "_kib"):
		return max(8<<10, early*0.15)
	}
	return 5
}

// quarter is the n-th quarter of values; of fewer than four it is the value that lies there.
func quarter(values []float64, n int) []float64 {
	from, to := len(values)*n/4, len(values)*(n+1)/4
	return values[from:max(to, from+1)]
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	mid := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[mid]
	}
	return (sorted[mid-1] + sorted[mid]) / 2
}

// show prints a table and reports whether all is flat.
func show(w io.Writer, driver string, lives int, all map[string]held) (flat bool) {
	flat = true
	fmt.Fprintf(w, "%s, %d lives: what is held when nothing lives, in the second and in the last quarter\n", driver, lives)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		h := all[name]
		mark := ""
		if !h.Flat {
			mark, flat = "  GROWS", false
		}
		fmt.Fprintf(w, "  %-24s %10.0f %10.0f  (allowed +%.0f, first %.0f, most %.0f)%s\n", name, h.Early, h.Late, h.Allowed, h.First, h.Max, mark)
	}
	return flat
}
