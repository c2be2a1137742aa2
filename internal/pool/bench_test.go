package pool

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/space-sandbox/space/internal/sandbox"
)

// BenchmarkCreateDisk is the pool's part in making a sandbox, on a loop-xfs pool.
func BenchmarkCreateDisk(b *testing.B) {
	dir := b.TempDir()
	image, point := filepath.Join(dir, "img"), filepath.Join(dir, "pool")
	if err := os.Mkdir(point, 0o700); err != nil {
		b.Fatal(err)
	}
	if err := MakeImage(b.Context(), image, 1<<30, true); err != nil {
		b.Fatal(err)
	}
	if err := Mount(b.Context(), image, point); err != nil {
		b.Fatal(err)
	}
	defer UnmountImage(b.Context(), image, point)
	p, err := Open(Config{Dir: point, ImageFile: image, Kind: KindLoopXFS})
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	m := benchTemplate(b, p)
	for b.Loop() {
		id := sandbox.NewID()
		disk, err := p.CreateDisk(b.Context(), id, m.Digest, 4096)
		if err != nil {
			b.Fatal(err)
		}
		disk.Close()
		if err := p.RemoveSandbox(id); err != nil {
			b.Fatal(err)
		}
	}
}

func benchTemplate(b *testing.B, p *Pool) Manifest {
	st, err := p.NewStage("bench")
	if err != nil {
		b.Fatal(err)
	}
	f, err := st.CreateRootfs()
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	buf := make([]byte, 64*mib)
	for i := range buf {
		buf[i] = byte(i >> 12)
	}
	if _, err := f.Write(buf); err != nil {
		b.Fatal(err)
	}
	m := Manifest{SizeBytes: int64(len(buf)), MinDiskMiB: 64, CreatedAt: fixedTime()}
	if m.Digest, err = Digest(b.Context(), f); err != nil {
		b.Fatal(err)
	}
	if err := p.InstallTemplate(b.Context(), st, m); err != nil {
		b.Fatal(err)
	}
	return m
}
