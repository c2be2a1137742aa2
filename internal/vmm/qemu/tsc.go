package qemu

import (
	"fmt"
	"sync"
	"time"
)

// tscSpan is how long the counter is watched at least: two readings, each within about 100 ns of its time, give its
// rate to a few millionths.
const tscSpan = 20 * time.Millisecond

// tscClock knows the rate of the host's time stamp counter, which is also what an emulated machine reads: a guest that
// is told another rate has a clock that runs fast or slow, with all its timeouts, and one that is told none measures it
// against a timer that stutters under emulation, which takes seconds or fails.
type tscClock struct {
	first tscReading
	kHz   func() uint64 // 0: not known; measured once, so that all machines get the same
}

type tscReading struct {
	ticks uint64
	at    time.Time
}

func newTSCClock() *tscClock {
	c := &tscClock{first: readTSCNow()}
	c.kHz = sync.OnceValue(c.measure)
	return c
}

// measure needs no waiting when the clock was made long enough ago.
func (c *tscClock) measure() uint64 {
	time.Sleep(tscSpan - time.Since(c.first.at)) //nolint:forbidigo // it is time that is measured
	last := readTSCNow()
	if last.ticks <= c.first.ticks {
		return 0
	}
	return uint64(float64(last.ticks-c.first.ticks)/last.at.Sub(c.first.at).Seconds()/1000 + 0.5)
}

// readTSCNow reads the counter between two readings of the time, and keeps the tightest of a few tries: the thread may
// lose the processor in between.
func readTSCNow() tscReading {
	const tries = 16
	var best tscReading
	tightest := time.Duration(-1)
	for range tries {
		before := time.Now()
		ticks := readTSC()
		took := time.Since(before)
		if tightest < 0 || took < tightest {
			best, tightest = tscReading{ticks: ticks, at: before.Add(took / 2)}, took
		}
	}
	return best
}

// clockArgs is what the kernel of a guest is told about its clock. Under KVM it has a clock that says its rate itself.
// The kernel must not check the counter against the timer: on a busy host the timer is late, the kernel would blame the
// counter, count late ticks instead, and fall behind by minutes.
func clockArgs(kvm bool, tscKHz uint64) string {
	if kvm || tscKHz == 0 {
		return ""
	}
	return fmt.Sprintf("tsc_early_khz=%d tsc=reliable", tscKHz)
}
