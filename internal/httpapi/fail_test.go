package httpapi_test

import (
	"testing"

	"github.com/space-sandbox/space/internal/httpapi/httpapitest"
)

// TestBoundsAreReadable: a bound in a message is written the way a client would send it.
func TestBoundsAreReadable(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	p := problem(t, request(t, s, "POST", "/v1/sandboxes", `{"template":"mini","disk_mib":99999999}`), 400, "invalid_argument")
	if want := "disk_mib: expected number <= 1048576"; p.Cause != want {
		t.Errorf("%q, want %q", p.Cause, want)
	}
}
