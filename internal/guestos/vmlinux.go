package guestos

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/pierrec/lz4/v4"
)

// Where the boot protocol of x86 (Documentation/arch/x86/boot.rst) says things in a bzImage.
const (
	offsetSetupSectors  = 0x1f1
	offsetHeaderMagic   = 0x202
	offsetVersion       = 0x206
	offsetPayloadOffset = 0x248
	offsetPayloadLength = 0x24c
	endOfSetupHeader    = 0x250

	sectorSize = 512
	// defaultSetupSectors is meant when the field is zero.
	defaultSetupSectors = 4
	// payloadVersion is the first version of the protocol that says where the payload is.
	payloadVersion = 0x0208
)

// lz4LegacyBlock is how much one block of a legacy frame may hold decompressed.
const lz4LegacyBlock = 8 << 20

// ExtractKernel returns the uncompressed kernel, an ELF file, that is packed in a vmlinuz (bzImage). The compression
// is recognised by the payload's first bytes: LZ4, zstd, gzip and xz are understood.
func ExtractKernel(vmlinuz []byte) ([]byte, error) {
	payload, err := kernelPayload(vmlinuz)
	if err != nil {
		return nil, fmt.Errorf("kernel: %w", err)
	}
	kernel, err := unpackPayload(payload)
	if err != nil {
		return nil, fmt.Errorf("kernel: %w", err)
	}
	if err := checkKernel(kernel); err != nil {
		return nil, fmt.Errorf("kernel: %w", err)
	}
	return kernel, nil
}

// kernelPayload finds the compressed kernel by the setup header.
func kernelPayload(image []byte) ([]byte, error) {
	if len(image) < endOfSetupHeader || string(image[offsetHeaderMagic:offsetHeaderMagic+4]) != "HdrS" {
		return nil, errors.New("not a bzImage")
	}
	if v := binary.LittleEndian.Uint16(image[offsetVersion:]); v < payloadVersion {
		return nil, fmt.Errorf("its boot protocol %#x is too old", v)
	}
	sectors := uint64(image[offsetSetupSectors])
	if sectors == 0 {
		sectors = defaultSetupSectors
	}
	start := (sectors+1)*sectorSize + uint64(binary.LittleEndian.Uint32(image[offsetPayloadOffset:]))
	end := start + uint64(binary.LittleEndian.Uint32(image[offsetPayloadLength:]))
	if start >= end || end > uint64(len(image)) {
		return nil, errors.New("the payload lies outside the file")
	}
	return image[start:end], nil
}

// unpackPayload decompresses. The kernel's build appends the size of the result to every format but gzip, whose
// own trailer says it in the same four bytes; so the last four bytes always are that size.
func unpackPayload(payload []byte) ([]byte, error) {
	if startsWith(payload, magicELF) {
		return payload, nil
	}
	if len(payload) < 8 {
		return nil, errUnknownFormat
	}
	stream, trailer := payload[:len(payload)-4], payload[len(payload)-4:]
	size := int64(binary.LittleEndian.Uint32(trailer))
	if size > maxKernel {
		return nil, fmt.Errorf("%d bytes: %w", size, ErrTooLarge)
	}
	kernel, err := unpackStream(payload, stream, size)
	if err != nil {
		return nil, err
	}
	if int64(len(kernel)) != size {
		return nil, fmt.Errorf("it unpacks to %d bytes, not to the %d it says", len(kernel), size)
	}
	return kernel, nil
}

func unpackStream(payload, stream []byte, size int64) ([]byte, error) {
	switch {
	case startsWith(payload, magicLZ4):
		return unpackLZ4Legacy(stream, size)
	case startsWith(payload, magicXZ):
		return unpackKernelXZ(stream, size)
	case startsWith(payload, magicGzip):
		stream = payload
	}
	r, err := decompressor(bytes.NewReader(stream), nil)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return readExactly(r, size)
}

// readExactly reads size bytes; what follows them is of no interest.
func readExactly(r io.Reader, size int64) ([]byte, error) {
	data := make([]byte, size)
	if _, err := io.ReadFull(r, data); err != nil {
		return nil, noEOF(err)
	}
	return data, nil
}

// unpackLZ4Legacy reads blocks, each with its length before it, to the end of the stream.
func unpackLZ4Legacy(stream []byte, size int64) ([]byte, error) {
	rest := stream[len(magicLZ4):]
	out := make([]byte, size)
	n := 0
	for len(rest) > 0 {
		if len(rest) < 4 {
			return nil, fmt.Errorf("lz4: %w", io.ErrUnexpectedEOF)
		}
		length := uint64(binary.LittleEndian.Uint32(rest))
		rest = rest[4:]
		if length == 0 || length > uint64(len(rest)) {
			return nil, errors.New("lz4: a block ends outside the stream")
		}
		room := out[n:min(len(out), n+lz4LegacyBlock)]
		m, err := lz4.UncompressBlock(rest[:length], room)
		if err != nil {
			return nil, fmt.Errorf("lz4: %w", err)
		}
		n += m
		rest = rest[length:]
	}
	return out[:n], nil
}

// checkKernel makes sure that a VMM can boot it: an x86-64 executable with the PVH entry point.
func checkKernel(kernel []byte) error {
	f, err := elf.NewFile(bytes.NewReader(kernel))
	if err != nil {
		return fmt.Errorf("it is no ELF file: %w", err)
	}
	if f.Class != elf.ELFCLASS64 || f.Machine != elf.EM_X86_64 || f.Type != elf.ET_EXEC {
		return fmt.Errorf("it is %v %v %v, not an x86-64 executable", f.Class, f.Machine, f.Type)
	}
	loads := 0
	for _, p := range f.Progs {
		if p.Type != elf.PT_LOAD {
			continue
		}
		loads++
		if end := p.Off + p.Filesz; end < p.Off || end > uint64(len(kernel)) {
			return errors.New("a segment lies outside the file")
		}
	}
	if loads == 0 {
		return errors.New("it has nothing to load")
	}
	return nil
}
