package failpoint_test

import (
	"strings"
	"testing"

	"github.com/space-sandbox/space/internal/failpoint"
)

// TestNames: a line of the file names one point.
func TestNames(t *testing.T) {
	t.Parallel()
	seen := map[failpoint.Name]bool{}
	for _, n := range failpoint.All() {
		if n == "" || seen[n] || strings.ContainsAny(string(n), "\r\n") {
			t.Errorf("point %q", n)
		}
		seen[n] = true
	}
}

// TestNothingIsArmed: without the tag, and without a file, a point is passed.
func TestNothingIsArmed(t *testing.T) {
	t.Parallel()
	for _, n := range failpoint.All() {
		failpoint.Hit(n)
	}
}
