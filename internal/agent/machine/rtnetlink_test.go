package machine

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestEncodeMessage(t *testing.T) {
	t.Parallel()
	got := encodeMessage(unix.RTM_NEWNEIGH, unix.NLM_F_REQUEST, 7, []byte{1, 2, 3, 4}, []attribute{
		{kind: 1, data: []byte{9, 9, 9, 9}}, {kind: 2, data: []byte{1, 2, 3, 4, 5, 6}}})
	want := []byte{
		40, 0, 0, 0, unix.RTM_NEWNEIGH, 0, unix.NLM_F_REQUEST, 0, 7, 0, 0, 0, 0, 0, 0, 0,
		1, 2, 3, 4,
		8, 0, 1, 0, 9, 9, 9, 9,
		10, 0, 2, 0, 1, 2, 3, 4, 5, 6, 0, 0,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("message (-want +got):\n%s", diff)
	}
}

func ack(kind uint16, seq uint32, code int32) []byte {
	b := make([]byte, unix.SizeofNlMsghdr)
	binary.NativeEndian.PutUint16(b[4:], kind)
	binary.NativeEndian.PutUint32(b[8:], seq)
	return binary.NativeEndian.AppendUint32(b, uint32(code))
}

func TestDecodeAck(t *testing.T) {
	t.Parallel()
	if err := decodeAck(ack(unix.NLMSG_ERROR, 7, 0), 7); err != nil {
		t.Errorf("an acknowledgement: %v", err)
	}
	if err := decodeAck(ack(unix.NLMSG_ERROR, 7, -int32(unix.EEXIST)), 7); !errors.Is(err, unix.EEXIST) {
		t.Errorf("a refusal: %v, want EEXIST", err)
	}
	for name, message := range map[string][]byte{
		"short":         {1, 2, 3},
		"other type":    ack(unix.RTM_NEWLINK, 7, 0),
		"other request": ack(unix.NLMSG_ERROR, 8, 0),
	} {
		if err := decodeAck(message, 7); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
