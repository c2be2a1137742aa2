package main

import (
	"testing"
	"time"
)

func TestJudge(t *testing.T) {
	t.Parallel()
	rising := func(n int, from, step float64) (out []float64) {
		for i := range n {
			out = append(out, from+float64(i)*step)
		}
		return out
	}
	for _, c := range []struct {
		name   string
		series string
		values []float64
		flat   bool
	}{
		{"at rest", "node goroutines", rising(40, 30, 0), true},
		{"a goroutine with each round", "node goroutines", rising(40, 30, 1), false},
		{"one spike", "node goroutines", append(rising(39, 30, 0), 300), true},
		{"warm-up only", "control rss_kib", append(rising(10, 20_000, 2_000), rising(30, 40_000, 0)...), true},
		{"memory with each round", "control rss_kib", rising(40, 40_000, 800), false},
		{"a heap that is collected now and then", "gateway heap_kib", []float64{20e3, 40e3, 30e3, 50e3, 60e3, 31e3, 45e3, 59e3, 60e3, 59e3, 32e3, 58e3}, true},
		{"a heap whose lowest rises", "gateway heap_kib", []float64{20e3, 40e3, 30e3, 31e3, 50e3, 60e3, 51e3, 70e3, 90e3, 80e3, 90e3, 85e3}, false},
		{"a descriptor with every second round", "up descriptors", rising(40, 20, 0.5), false},
		{"one object more", "ledger tap", append(rising(20, 3, 0), rising(20, 4, 0)...), false},
		{"drift, only once", "ledger drift", append([]float64{1}, rising(20, 0, 0)...), false},
		{"no drift", "ledger drift", rising(20, 0, 0), true},
		{"few rounds", "gateway goroutines", []float64{20, 21}, true},
		{"one round", "gateway goroutines", []float64{20}, true},
	} {
		if got := judge(map[string][]float64{c.series: c.values}, 100, time.Minute)[c.series]; got.Flat != c.flat {
			t.Errorf("%s: %+v, want flat %v", c.name, got, c.flat)
		}
	}
}

// TestJudgeWithoutRest: only much more memory counts then.
func TestJudgeWithoutRest(t *testing.T) {
	t.Parallel()
	for late, flat := range map[float64]bool{40 << 10: true, 150 << 10: false} {
		values := []float64{30 << 10, 30 << 10, 30 << 10, late}
		if got := judge(map[string][]float64{"gateway rss_kib": values}, 100, 0)["gateway rss_kib"]; got.Flat != flat {
			t.Errorf("%+v, want flat %v", got, flat)
		}
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	const text = `# TYPE go_goroutines gauge
go_goroutines{process="control"} 41
go_goroutines{process="gateway"} 12
go_goroutines{process="node"} 20
go_memstats_heap_alloc_bytes{process="control"} 2.048e+06
go_memstats_heap_alloc_bytes{process="gateway"} 1024
go_memstats_heap_alloc_bytes{process="node"} 1024
space_sandboxes{state="running"} 0
`
	got := map[string]float64{}
	if err := metrics([]byte(text), got); err != nil || got["control goroutines"] != 41 || got["control heap_kib"] != 2000 || len(got) != 6 {
		t.Errorf("%v %v", got, err)
	}
	if err := metrics([]byte(text[:100]), got); err == nil {
		t.Error("metrics of which most are missing were accepted")
	}
}
