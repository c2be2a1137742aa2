package machine

import (
	"testing"

	"pgregory.net/rapid"
)

func TestUserMemoryLeavesAReserve(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for total, want := range map[uint64]uint64{
		128 * mib:  88 * mib,
		256 * mib:  200 * mib,
		4096 * mib: (4096 - 24 - 256) * mib,
		32 * mib:   16 * mib, // half, whatever is left for us
	} {
		if got := userMemory(total); got != want {
			t.Errorf("of %d MiB: %d MiB, want %d", total/mib, got/mib, want/mib)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.Uint64Range(0, 1<<50).Draw(t, "total")
		if got := userMemory(total); got > total || got < total/2 {
			t.Errorf("of %d: %d", total, got)
		}
	})
}

func TestUserThreads(t *testing.T) {
	t.Parallel()
	if got := userThreads(1600); got != 800 {
		t.Errorf("of 1600: %d, want 800", got)
	}
	if got := userThreads(10); got != minThreads {
		t.Errorf("of 10: %d, want the least, %d", got, minThreads)
	}
}

func TestWantedControllers(t *testing.T) {
	t.Parallel()
	if got := wantedControllers("cpuset cpu io memory hugetlb pids misc\n"); got != "+cpu +memory +pids" {
		t.Errorf("%q", got)
	}
	if got := wantedControllers("hugetlb\n"); got != "" {
		t.Errorf("%q, want none", got)
	}
}
