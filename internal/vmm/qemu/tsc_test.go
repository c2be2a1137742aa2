package qemu

import (
	"math"
	"testing"
	"time"
)

// TestTSCRate: the rate holds over another span of time than the one it was measured in.
func TestTSCRate(t *testing.T) {
	t.Parallel()
	got := newTSCClock().kHz()
	if got == 0 {
		t.Fatal("the rate of the counter is not known")
	}
	from := readTSCNow()
	time.Sleep(5 * tscSpan)
	to := readTSCNow()
	counted := float64(to.ticks-from.ticks) / float64(got) / 1000 // seconds by the counter
	if real := to.at.Sub(from.at).Seconds(); math.Abs(counted/real-1) > 1e-3 {
		t.Errorf("at %d kHz the counter says %.6f s for %.6f s", got, counted, real)
	}
}

func TestClockArgs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		kvm  bool
		kHz  uint64
		want string
	}{{false, 2596148, "tsc_early_khz=2596148 tsc=reliable"}, {true, 2596148, ""}, {false, 0, ""}} {
		if got := clockArgs(tt.kvm, tt.kHz); got != tt.want {
			t.Errorf("clockArgs(%t, %d) = %q, want %q", tt.kvm, tt.kHz, got, tt.want)
		}
	}
}
