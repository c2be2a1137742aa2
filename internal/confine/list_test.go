package confine_test

import (
	"slices"
	"syscall"
	"testing"

	"github.com/space-sandbox/space/internal/confine"
)

// TestRunningAs finds a process of the range with what Adopt needs, none of other uids, and none that has ended.
func TestRunningAs(t *testing.T) {
	t.Parallel()
	const uid = 0x6fffff00
	spec := sleeper()
	spec.UID, spec.GID = uid, uid
	p := start(t, spec)
	has := func(base, count uint32) bool {
		t.Helper()
		all, err := confine.RunningAs(base, count)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(all, func(id confine.Identity) bool { return id.PID == p.PID() })
		if i >= 0 && all[i] != p.Identity() {
			t.Errorf("%+v, want %+v", all[i], p.Identity())
		}
		return i >= 0
	}
	if !has(uid, 1) || !has(uid-7, 8) {
		t.Error("the process is not found")
	}
	if has(uid-7, 7) || has(uid+1, 100) {
		t.Error("the process is found in a range that is not its own")
	}
	if err := p.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if has(uid, 1) {
		t.Error("a process that has ended is found")
	}
}

// BenchmarkRunningAs is what a look at all processes of the host costs.
func BenchmarkRunningAs(b *testing.B) {
	for b.Loop() {
		if _, err := confine.RunningAs(0x6fffff00, 1); err != nil {
			b.Fatal(err)
		}
	}
}
