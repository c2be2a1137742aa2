package guest

import (
	"errors"
	"testing"

	"connectrpc.com/connect"

	"github.com/space-sandbox/space/internal/sandbox"
)

// TestLostConnectionIsNoFault: a machine that hangs does not answer pings; that must not count as nonsense.
func TestLostConnectionIsNoFault(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]sandbox.Code{
		"protocol error: incomplete envelope: http2: client connection lost":                                sandbox.CodeUnavailable,
		"protocol error: incomplete envelope: http2: client connection force closed via ClientConn.Close":   sandbox.CodeUnavailable,
		"http2: server sent GOAWAY and closed the connection; LastStreamID=1, ErrCode=NO_ERROR, debug=\"\"": sandbox.CodeUnavailable,
		"protocol error: incomplete envelope":                                                               sandbox.CodeGuestFault,
	} {
		err := callError(t.Context(), connect.NewError(connect.CodeInvalidArgument, errors.New(text)))
		if got := sandbox.CodeOf(err); got != want {
			t.Errorf("%q is %s, want %s", text, got, want)
		}
	}
}
