package guestos

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/ulikunitz/xz"
)

// Everything that tests read is made here, small, in the formats of the real thing.

// elfKernel is a small x86-64 executable with one segment.
func elfKernel(size int) []byte {
	const headerSize, segmentSize = 64, 56
	b := append([]byte{}, magicELF...)
	b = append(b, 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0) // 64 bit, little endian, version 1
	le := binary.LittleEndian
	b = le.AppendUint16(b, 2)  // EXEC
	b = le.AppendUint16(b, 62) // x86-64
	b = le.AppendUint32(b, 1)
	b = le.AppendUint64(b, 0x1000000)  // entry
	b = le.AppendUint64(b, headerSize) // program headers
	b = le.AppendUint64(b, 0)          // no sections
	b = le.AppendUint32(b, 0)
	for _, v := range []uint16{headerSize, segmentSize, 1, 64, 0, 0} {
		b = le.AppendUint16(b, v)
	}
	b = le.AppendUint32(b, 1) // LOAD
	b = le.AppendUint32(b, 5)
	for _, v := range []uint64{0, 0x1000000, 0x1000000, uint64(size), uint64(size), 0x1000} {
		b = le.AppendUint64(b, v)
	}
	for i := len(b); i < size; i++ {
		b = append(b, byte(i*i>>3))
	}
	return b
}

// bzImage packs a payload as the kernel's build does.
func bzImage(payload []byte) []byte {
	const setupSectors, offset = 1, 32
	image := make([]byte, (setupSectors+1)*sectorSize+offset)
	image[offsetSetupSectors] = setupSectors
	copy(image[offsetHeaderMagic:], "HdrS")
	binary.LittleEndian.PutUint16(image[offsetVersion:], 0x020f)
	binary.LittleEndian.PutUint32(image[offsetPayloadOffset:], offset)
	binary.LittleEndian.PutUint32(image[offsetPayloadLength:], uint32(len(payload)))
	return append(image, payload...)
}

func withSize(stream []byte, size int) []byte {
	return binary.LittleEndian.AppendUint32(stream, uint32(size))
}

func packGzip(t testing.TB, data []byte) []byte {
	return pack(t, data, func(w io.Writer) (io.WriteCloser, error) { return gzip.NewWriter(w), nil })
}

func packZstd(t testing.TB, data []byte) []byte {
	return pack(t, data, func(w io.Writer) (io.WriteCloser, error) { return zstd.NewWriter(w) })
}

func packXZ(t testing.TB, data []byte) []byte {
	return pack(t, data, func(w io.Writer) (io.WriteCloser, error) { return xz.NewWriter(w) })
}

func pack(t testing.TB, data []byte, open func(io.Writer) (io.WriteCloser, error)) []byte {
	t.Helper()
	var buf bytes.Buffer
	w, err := open(&buf)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// packLZ4 writes a legacy frame.
func packLZ4(t testing.TB, data []byte) []byte {
	t.Helper()
	out := append([]byte{}, magicLZ4...)
	for len(data) > 0 {
		n := min(len(data), lz4LegacyBlock)
		block := make([]byte, lz4.CompressBlockBound(n))
		m, err := lz4.CompressBlock(data[:n], block, nil)
		if err != nil || m == 0 {
			t.Fatalf("lz4: %d, %v", m, err)
		}
		out = append(binary.LittleEndian.AppendUint32(out, uint32(m)), block[:m]...)
		data = data[n:]
	}
	return out
}

// elfModule is a relocatable file with a section .modinfo.
func elfModule(name, depends string) []byte {
	const headerSize, sectionSize = 64, 64
	info := "license=GPL\x00depends=" + depends + "\x00name=" + name + "\x00"
	names := "\x00.modinfo\x00.shstrtab\x00"
	sections := headerSize + len(info) + len(names)
	le := binary.LittleEndian
	b := append([]byte{}, magicELF...)
	b = append(b, 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	b = le.AppendUint16(b, 1) // REL
	b = le.AppendUint16(b, 62)
	b = le.AppendUint32(b, 1)
	for _, v := range []uint64{0, 0, uint64(sections)} {
		b = le.AppendUint64(b, v)
	}
	b = le.AppendUint32(b, 0)
	for _, v := range []uint16{headerSize, 0, 0, sectionSize, 3, 2} {
		b = le.AppendUint16(b, v)
	}
	b = append(append(b, info...), names...)
	section := func(nameAt, kind uint32, offset, size int) {
		b = le.AppendUint32(le.AppendUint32(b, nameAt), kind)
		for _, v := range []uint64{0, 0, uint64(offset), uint64(size)} {
			b = le.AppendUint64(b, v)
		}
		b = le.AppendUint64(b, 0) // link, info
		b = le.AppendUint64(b, 1) // alignment
		b = le.AppendUint64(b, 0)
	}
	section(0, 0, 0, 0)
	section(1, 1, headerSize, len(info))
	section(10, 3, headerSize+len(info), len(names))
	return b
}

// debEntry is one entry of a package's data.tar.
type debEntry struct {
	header tar.Header
	data   []byte
}

func debFile(name string, data []byte) debEntry {
	return debEntry{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(data))}, data}
}

func tarOf(t testing.TB, entries ...debEntry) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		if err := w.WriteHeader(&e.header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(e.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// debOf is a package with this data member.
func debOf(name string, data []byte) []byte {
	b := []byte(arMagic)
	for _, m := range []struct {
		name string
		data []byte
	}{{"debian-binary", []byte("2.0\n")}, {"control.tar.xz", []byte("odd")}, {name, data}} {
		b = fmt.Appendf(b, "%-16s%-12d%-6d%-6d%-8s%-10d`\n", m.name, 0, 0, 0, "100644", len(m.data))
		b = append(b, m.data...)
		if len(m.data)%2 == 1 {
			b = append(b, '\n')
		}
	}
	return b
}

// kernelDeb is a whole kernel package as Debian makes it: modules.dep is not in it.
func kernelDeb(t testing.TB) []byte {
	t.Helper()
	kernel := elfKernel(10_000)
	modules := map[string]string{
		"drivers/virtio/virtio":                "",
		"drivers/virtio/virtio_ring":           "",
		"drivers/virtio/virtio_mmio":           "virtio_ring,virtio",
		"drivers/block/virtio_blk":             "virtio,virtio_ring",
		"net/core/failover":                    "",
		"drivers/net/net_failover":             "failover",
		"drivers/net/virtio_net":               "net_failover,virtio,virtio_ring",
		"drivers/char/hw_random/virtio-rng":    "virtio,virtio_ring",
		"net/ipv4/tcp_diag":                    "inet_diag",
		"net/ipv4/inet_diag":                   "",
		"drivers/gpu/drm/something-else/other": "virtio",
	}
	entries := []debEntry{debFile("./boot/vmlinuz-6.1.0-9-cloud", bzImage(withSize(packLZ4(t, kernel), len(kernel))))}
	for path, depends := range modules {
		name := moduleName(path[bytes.LastIndexByte([]byte(path), '/')+1:])
		entries = append(entries, debFile("./lib/modules/6.1.0-9-cloud/kernel/"+path+".ko", elfModule(name, depends)))
	}
	return debOf("data.tar.xz", packXZ(t, tarOf(t, entries...)))
}
