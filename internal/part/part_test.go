package part

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/sandbox"
)

// TestNoNewPrivsError: who built the program in a way that cannot work is told how to build it.
func TestNoNewPrivsError(t *testing.T) {
	t.Parallel()
	err := noNewPrivsError(unix.ENOTSUP)
	if e := sandbox.AsError(err); !Hopeless(err) || !strings.Contains(e.Remedy, "CGO_ENABLED=0") {
		t.Errorf("with cgo: %v, remedy %q", err, e.Remedy)
	}
	if err := noNewPrivsError(unix.EINVAL); Hopeless(err) || !errors.Is(err, unix.EINVAL) {
		t.Errorf("else: %v", err)
	}
}
