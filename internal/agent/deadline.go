package agent

import (
	"sync"
	"time"
)

const (
	// deadlineStep is the longest time counted in one go, and so what a machine that stood still may be late by.
	deadlineStep = time.Second
	// deadlineSlack is how late a step may end on a busy machine before it is taken for a pause.
	deadlineSlack = 250 * time.Millisecond
)

// deadline calls expire when the machine has run for so long. The wall clock does not matter to it, and neither does a
// pause: some monitors let the monotonic clock of a machine go on while it stands still, so time is counted in steps, and
// a step that took far too long does not count. One in a row: on a machine that is always late, time passes too.
type deadline struct {
	now    func() time.Time // monotonic
	expire func()

	mu      sync.Mutex
	timer   *time.Timer
	left    time.Duration
	began   time.Time // of the step
	step    time.Duration
	doubted bool // the last step did not count
	stopped bool
}

// startDeadline begins to count. End it with stop, unless expire has been called.
func startDeadline(after time.Duration, now func() time.Time, expire func()) *deadline {
	d := &deadline{now: now, expire: expire, left: after}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.arm()
	return d
}

// arm begins a step. Call with the lock.
func (d *deadline) arm() {
	d.began, d.step = d.now(), min(d.left, deadlineStep)
	d.timer = time.AfterFunc(d.step, d.tick)
}

func (d *deadline) tick() {
	if d.count() {
		d.expire()
	}
}

// count takes the step that has ended into account and reports whether the time is over; else the next one begins.
func (d *deadline) count() (over bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped {
		return false
	}
	ran := d.now().Sub(d.began)
	d.doubted = ran > d.step+deadlineSlack && !d.doubted
	if !d.doubted {
		d.left -= min(ran, d.step+deadlineSlack)
	}
	if d.left <= 0 {
		return true
	}
	d.arm()
	return false
}

// stop ends the counting; expire may be under way already.
func (d *deadline) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stopped = true
	d.timer.Stop()
}
