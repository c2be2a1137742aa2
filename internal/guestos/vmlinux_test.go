package guestos

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"testing"
)

func TestExtractKernel(t *testing.T) {
	t.Parallel()
	kernel := elfKernel(lz4LegacyBlock + 5000) // more than one block
	for name, payload := range map[string][]byte{
		"lz4":  withSize(packLZ4(t, kernel), len(kernel)),
		"gzip": packGzip(t, kernel),
		"zstd": withSize(packZstd(t, kernel), len(kernel)),
		"xz":   withSize(packXZ(t, kernel), len(kernel)),
		"none": kernel,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := ExtractKernel(bzImage(payload))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, kernel) {
				t.Errorf("%d bytes, which are not the kernel's %d", len(got), len(kernel))
			}
		})
	}
}

func TestExtractKernelRefuses(t *testing.T) {
	t.Parallel()
	kernel := elfKernel(4000)
	lz4 := packLZ4(t, kernel)
	tooOld := bzImage(withSize(lz4, len(kernel)))
	binary.LittleEndian.PutUint16(tooOld[offsetVersion:], 0x0207)
	outside := bzImage(withSize(lz4, len(kernel)))
	binary.LittleEndian.PutUint32(outside[offsetPayloadLength:], 1<<31)
	arm := elfKernel(4000)
	arm[18] = 183
	for name, image := range map[string][]byte{
		"empty":           nil,
		"no bzImage":      make([]byte, 4096),
		"old protocol":    tooOld,
		"payload outside": outside,
		"unknown format":  bzImage(withSize([]byte("BZh91AY&SY"), len(kernel))),
		"no ELF":          bzImage(packGzip(t, make([]byte, 4000))),
		"other machine":   bzImage(packGzip(t, arm)),
		"cut off":         bzImage(withSize(lz4[:len(lz4)-20], len(kernel))),
		"wrong size":      bzImage(withSize(lz4, len(kernel)+1)),
		"segment outside": bzImage(packGzip(t, kernel[:2000])),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := ExtractKernel(image); err == nil {
				t.Error("accepted")
			}
		})
	}
	if _, err := ExtractKernel(bzImage(withSize(lz4, maxKernel+1))); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a kernel that says it is too large: %v, want ErrTooLarge", err)
	}
}

// TestX86Filter decodes machine code that xz --x86 packed, as the kernel's build calls it.
func TestX86Filter(t *testing.T) {
	t.Parallel()
	packed, err := os.ReadFile("testdata/machinecode.xz")
	if err != nil {
		t.Fatal(err)
	}
	code, err := unpackKernelXZ(packed, 16384)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(code)
	if got, want := hex.EncodeToString(sum[:]), "af06348dff12bafb200298ad7d4f6bd058bd8ac54cdf2a899c1a24469873f945"; got != want {
		t.Errorf("sha256 %s, want %s", got, want)
	}
}

func FuzzExtractKernel(f *testing.F) {
	kernel := elfKernel(600)
	f.Add(bzImage(withSize(packLZ4(f, kernel), len(kernel))))
	f.Add(bzImage(withSize(packXZ(f, kernel), len(kernel))))
	f.Add(bzImage(packGzip(f, kernel)))
	f.Fuzz(func(t *testing.T, image []byte) {
		if size := len(image); size >= 4 && binary.LittleEndian.Uint32(image[size-4:]) > 1<<20 {
			return // within the bound, but memory that a fuzzing machine does not have for each try
		}
		kernel, err := ExtractKernel(image)
		if err == nil && !startsWith(kernel, magicELF) {
			t.Error("the result is no ELF file")
		}
	})
}
