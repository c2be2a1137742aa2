package machine

import (
	"encoding/binary"
	"testing"
)

func super(shift uint32, incompat uint32) []byte {
	b := make([]byte, superblockSize)
	binary.LittleEndian.PutUint16(b[superMagic:], ext4Magic)
	binary.LittleEndian.PutUint32(b[superBlocksLow:], 5)
	binary.LittleEndian.PutUint32(b[superBlocksHigh:], 1)
	binary.LittleEndian.PutUint32(b[superLogBlock:], shift)
	binary.LittleEndian.PutUint32(b[superIncompat:], incompat)
	return b
}

func TestParseSuperblock(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		super []byte
		want  extent
	}{
		"32 bit": {super(2, 0), extent{blocks: 5, blockSize: 4096}},
		"64 bit": {super(0, incompat64Bit), extent{blocks: 1<<32 + 5, blockSize: 1024}},
	} {
		got, err := parseSuperblock(c.super)
		if err != nil || got != c.want {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, c.want)
		}
	}
	for name, b := range map[string][]byte{"empty": nil, "no ext4": make([]byte, superblockSize), "block size": super(7, 0)} {
		if got, err := parseSuperblock(b); err == nil {
			t.Errorf("%s: accepted as %+v", name, got)
		}
	}
}
