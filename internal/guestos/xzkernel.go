package guestos

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/bits"

	"github.com/ulikunitz/xz/lzma"
)

// Filters of the xz format.
const (
	filterX86   = 0x04
	filterLZMA2 = 0x21
)

// maxDictionary bounds the memory a stream may ask for. The kernel's build uses 32 MiB.
const maxDictionary = 128 << 20

// xzStreamHeader is the size of the header before the first block.
const xzStreamHeader = 12

// unpackKernelXZ decodes the one block of a kernel's xz stream. The kernel's build filters machine code before
// compressing it (BCJ x86), which the xz library does not know; so the block's header is read here and the filter is
// undone here.
func unpackKernelXZ(stream []byte, size int64) ([]byte, error) {
	if len(stream) < xzStreamHeader+1 {
		return nil, fmt.Errorf("xz: %w", errUnknownFormat)
	}
	block := stream[xzStreamHeader:]
	headerSize := (int(block[0]) + 1) * 4
	if block[0] == 0 || headerSize > len(block) {
		return nil, errors.New("xz: no block")
	}
	header, sum := block[:headerSize-4], block[headerSize-4:headerSize]
	if crc32.ChecksumIEEE(header) != binary.LittleEndian.Uint32(sum) {
		return nil, errors.New("xz: damaged block header")
	}
	filters, err := parseXZFilters(header)
	if err != nil {
		return nil, err
	}
	r, err := lzma.Reader2Config{DictCap: filters.dictionary}.NewReader2(bytes.NewReader(block[headerSize:]))
	if err != nil {
		return nil, fmt.Errorf("xz: %w", err)
	}
	data, err := readExactly(r, size)
	if err != nil {
		return nil, fmt.Errorf("xz: %w", err)
	}
	if filters.x86 {
		undoX86Filter(data)
	}
	return data, nil
}

type xzFilters struct {
	x86        bool
	dictionary int
}

// parseXZFilters reads the chain of filters in a block header: LZMA2, with or without x86 before it.
func parseXZFilters(header []byte) (xzFilters, error) {
	var filters xzFilters
	flags := header[1]
	rest := header[2:]
	for _, present := range []byte{0x40, 0x80} { // compressed and uncompressed size
		if flags&present != 0 {
			_, n := binary.Uvarint(rest)
			if n <= 0 {
				return filters, errors.New("xz: damaged block header")
			}
			rest = rest[n:]
		}
	}
	for range int(flags&3) + 1 {
		if len(rest) < 2 || len(rest) < 2+int(rest[1]) {
			return filters, errors.New("xz: damaged block header")
		}
		id, properties := rest[0], rest[2:2+int(rest[1])]
		rest = rest[2+len(properties):]
		switch {
		case id == filterX86 && len(properties) == 0 && filters.dictionary == 0:
			filters.x86 = true
		case id == filterLZMA2 && len(properties) == 1 && filters.dictionary == 0:
			filters.dictionary = xzDictionary(properties[0])
			if filters.dictionary > maxDictionary {
				return filters, fmt.Errorf("xz: dictionary of %d bytes: %w", filters.dictionary, ErrTooLarge)
			}
		default:
			return filters, fmt.Errorf("xz: filter %#x is not understood", id)
		}
	}
	if filters.dictionary == 0 {
		return filters, errors.New("xz: no LZMA2 filter")
	}
	return filters, nil
}

// xzDictionary decodes the size of the dictionary: two bits of mantissa, the rest exponent.
func xzDictionary(property byte) int {
	code := uint(property & 0x3f)
	if code > 38 {
		return maxDictionary + 1
	}
	return int(2|code&1) << (code/2 + 11)
}

// filterMark tells the bytes that can be the top of an absolute target.
func filterMark(b byte) bool { return b == 0 || b == 0xff }

// undoX86Filter turns absolute targets of call and jump instructions back into relative ones, in place. Which bytes
// the encoder converted depends on the opcodes in the three bytes before; mask has one bit for each of them.
func undoX86Filter(data []byte) {
	var mask uint32
	last := -1 // position of the last opcode
	for i := 0; i+5 <= len(data); i++ {
		if data[i]&0xfe != 0xe8 {
			continue
		}
		if gap := uint(i - last); gap <= 3 {
			mask = mask << (gap - 1) & 7
		} else {
			mask = 0
		}
		last = i
		operand := data[i+1 : i+5]
		blocked := mask != 0 && (maskHasTwo(mask) || filterMark(operand[3-maskDepth(mask)]))
		if blocked || !filterMark(operand[3]) {
			mask = mask<<1 | 1
			continue
		}
		source := binary.LittleEndian.Uint32(operand)
		binary.LittleEndian.PutUint32(operand, relativeTarget(source, uint32(i+5), mask))
		i += 4
	}
}

// maskDepth is how many bytes lie between the oldest marked opcode and this one, plus one; 0 without any.
func maskDepth(mask uint32) int { return bits.Len32(mask) }

// maskHasTwo says that two or more of the three bytes before were opcodes.
func maskHasTwo(mask uint32) bool { return bits.OnesCount32(mask) > 1 }

func relativeTarget(source, position, mask uint32) uint32 {
	for {
		target := source - position
		depth := uint(8 * maskDepth(mask))
		if mask == 0 || !filterMark(byte(target>>(24-depth))) {
			return signExtend(target)
		}
		source = target ^ (1<<(32-depth) - 1)
	}
}

// signExtend keeps 25 bits: targets are within ±16 MiB.
func signExtend(v uint32) uint32 {
	if v&(1<<24) != 0 {
		return v | 0xff000000
	}
	return v & 0x01ffffff
}
