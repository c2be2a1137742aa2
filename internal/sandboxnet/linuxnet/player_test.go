package linuxnet_test

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/space-sandbox/space/internal/sandboxnet/netlab/frame"
)

// player is a guest without a machine: it sends and receives frames on the end of a tap that a VMM would hold.
type player struct {
	tap  *os.File
	seen []frame.Packet
}

// vnetHeader is the size of the header that a tap puts before each frame by default.
const vnetHeader = 10

func (p *player) send(t *testing.T, frames ...[]byte) {
	t.Helper()
	for _, f := range frames {
		if _, err := p.tap.Write(append(make([]byte, vnetHeader), f...)); err != nil {
			t.Fatalf("send a frame: %v", err)
		}
	}
}

// await receives until want is true for a frame and returns it; everything received is kept in seen.
func (p *player) await(t *testing.T, limit time.Duration, want func(frame.Packet) bool) (frame.Packet, bool) {
	t.Helper()
	if err := p.tap.SetReadDeadline(time.Now().Add(limit)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 70_000)
	for {
		n, err := p.tap.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return frame.Packet{}, false
		}
		if err != nil {
			t.Fatalf("receive a frame: %v", err)
		}
		got := frame.Parse(append([]byte(nil), buf[vnetHeader:n]...))
		p.seen = append(p.seen, got)
		if want(got) {
			return got, true
		}
	}
}
