package agent

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestDeadlineCountsRunningTime: a machine that stands still, so that its monotonic clock jumps, loses none of its time,
// and one that is late at every step comes to the end too.
func TestDeadlineCountsRunningTime(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		after       time.Duration
		jump        func(step int) time.Duration // what a step takes too long
		least, most time.Duration                // of running time
	}{
		"never stopped":       {3500 * time.Millisecond, func(int) time.Duration { return 0 }, 3500 * time.Millisecond, 3500 * time.Millisecond},
		"short":               {20 * time.Millisecond, func(int) time.Duration { return 0 }, 20 * time.Millisecond, 20 * time.Millisecond},
		"stopped once":        {5 * time.Second, func(n int) time.Duration { return only(n == 2, 70*time.Second) }, 5 * time.Second, 6 * time.Second},
		"stopped at the last": {5 * time.Second, func(n int) time.Duration { return only(n == 5, time.Hour) }, 5 * time.Second, 6 * time.Second},
		"stopped in a short":  {300 * time.Millisecond, func(n int) time.Duration { return only(n == 1, time.Hour) }, 300 * time.Millisecond, 600 * time.Millisecond},
		"stopped often":       {20 * time.Second, func(n int) time.Duration { return only(n%2 == 1, time.Minute) }, 20 * time.Second, 40 * time.Second},
		"always late":         {20 * time.Second, func(int) time.Duration { return 400 * time.Millisecond }, 15 * time.Second, 40 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began, jumped, step := time.Now(), time.Duration(0), 0
				now := func() time.Time { return time.Now().Add(jumped) }
				over := make(chan struct{})
				d := startDeadline(row.after, func() time.Time {
					if step%2 == 1 { // asked at the beginning of a step and at its end
						jumped += row.jump(step/2 + 1)
					}
					step++
					return now()
				}, func() { close(over) })
				<-over
				d.stop()
				if ran := time.Since(began); ran < row.least || ran > row.most {
					t.Errorf("over after %v of running", ran)
				}
			})
		})
	}
}

func only(when bool, d time.Duration) time.Duration {
	if when {
		return d
	}
	return 0
}

func TestDeadlineStops(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := startDeadline(3*time.Second, time.Now, func() { t.Error("expired") })
		time.Sleep(2 * time.Second)
		d.stop()
		time.Sleep(time.Minute)
	})
}
