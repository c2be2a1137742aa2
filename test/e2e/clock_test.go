//go:build realvm

package e2e

import (
	"strconv"
	"strings"
	"testing"
	"time"
)

// reading is what a guest's clock said, at some time between before and after.
type reading struct{ before, guest, after time.Time }

func (i *installation) readClock(ref string) reading {
	i.t.Helper()
	r := reading{before: time.Now()}
	seconds, err := strconv.ParseFloat(strings.TrimSpace(i.sh(ref, "date +%s.%N")), 64)
	r.after = time.Now()
	if err != nil {
		i.t.Fatal(err)
	}
	r.guest = time.UnixMicro(int64(seconds * 1e6))
	return r
}

// testClock: a guest's clock is right, and does not run fast or slow: an emulated one once did, by a quarter.
func testClock(t *testing.T, first, last reading) {
	const off = 5 * time.Second // how late the clock may be set on a host that is busy
	if last.guest.Before(last.before.Add(-off)) || last.guest.After(last.after.Add(off)) {
		t.Errorf("the guest says %v between %v and %v", last.guest, last.before, last.after)
	}
	passed, least, most := last.guest.Sub(first.guest), last.before.Sub(first.after), last.after.Sub(first.before)
	if slack := most / 20; passed < least-slack || passed > most+slack {
		t.Errorf("%v passed in the guest while %v to %v passed outside", passed, least, most)
	}
}
