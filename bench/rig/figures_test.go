package rig

import "testing"

func TestQuantile(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		values []float64
		q      float64
		want   float64
	}{
		{[]float64{7}, 0.5, 7},
		{[]float64{7}, 0.99, 7},
		{[]float64{1, 3}, 0.5, 2},
		{[]float64{1, 2, 3, 4, 5}, 0.5, 3},
		{[]float64{0, 10}, 1, 10},
	} {
		if got := quantile(c.values, c.q); got != c.want {
			t.Errorf("quantile(%v, %v) = %v, want %v", c.values, c.q, got, c.want)
		}
	}
}
