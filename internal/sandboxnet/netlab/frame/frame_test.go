package frame_test

import (
	"net/netip"
	"testing"

	"github.com/space-sandbox/space/internal/sandboxnet/netlab/frame"
)

func TestChecksumOfKnownHeader(t *testing.T) {
	t.Parallel()
	// The example header of RFC 1071's readers: its checksum field must come out as b861.
	h := []byte{0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7}
	if got := frame.Checksum(h); got != 0xb861 {
		t.Errorf("checksum = %#x, want 0xb861", got)
	}
}

func TestParseReadsWhatWasMade(t *testing.T) {
	t.Parallel()
	src, dst := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	segment := frame.TCP(src, dst, 7, 9, frame.RST)
	packet := frame.IPv4{Src: src, Dst: dst, Protocol: frame.ProtoTCP, Options: []byte{1, 1, 1, 0}}.With(segment)
	p := frame.Parse(frame.Ethernet(frame.BroadcastMAC, "02:00:00:00:00:01", frame.TypeIPv4, packet))
	if p.Dst != dst || !p.IsReset(src, 7) {
		t.Errorf("parsed %+v", p)
	}
	for n := range p.Raw { // a frame cut off anywhere must not hurt
		frame.Parse(p.Raw[:n])
	}
}
