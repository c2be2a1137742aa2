package pool

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/datadir"
	"github.com/space-sandbox/space/internal/sandbox"
)

// attached reports whether any loop device has this image.
func attached(t *testing.T, image string) bool {
	t.Helper()
	f, err := os.Open(image)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dev, err := findLoop(f)
	if err != nil {
		t.Fatal(err)
	}
	if dev != nil {
		dev.Close()
	}
	return dev != nil
}

func TestEnsureAndUnmountAreIdempotent(t *testing.T) {
	t.Parallel()
	dir := &datadir.Dir{Path: t.TempDir(), Installation: datadir.Installation{PoolKind: string(KindLoopXFS)}}
	if err := os.Mkdir(dir.PoolDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := MakeImage(t.Context(), dir.PoolImage(), MinImageBytes, true); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { Unmount(context.Background(), dir) }) // checked below
	if _, err := OpenDir(dir); sandbox.CodeOf(err) != sandbox.CodeHostSetup {
		t.Errorf("a pool that is not mounted opens: %v", err)
	}
	lost := &datadir.Dir{Path: t.TempDir(), Installation: dir.Installation}
	if err := os.Mkdir(lost.PoolDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	_, openErr := OpenDir(lost)
	for _, err := range []error{openErr, Ensure(t.Context(), lost)} {
		if sandbox.CodeOf(err) != sandbox.CodeHostSetup || !strings.Contains(sandbox.AsError(err).Remedy, "space setup --data-dir "+lost.Path) {
			t.Errorf("a pool without its image: %v", err)
		}
	}
	for range 2 {
		for range 2 {
			if err := Ensure(t.Context(), dir); err != nil {
				t.Fatal(err)
			}
		}
		p, err := OpenDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		p.Close()
		for range 2 {
			if err := Unmount(t.Context(), dir); err != nil {
				t.Fatal(err)
			}
		}
		if attached(t, dir.PoolImage()) {
			t.Error("the loop device is still attached")
		}
	}
}

func TestMountOptions(t *testing.T) {
	t.Parallel()
	cfg := mountedImage(t)
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		if fields[1] != cfg.Dir {
			continue
		}
		for _, want := range []string{"nosuid", "nodev", "noexec", "noatime", "discard"} {
			if !strings.Contains(fields[3], want) {
				t.Errorf("%s is missing in %s", want, fields[3])
			}
		}
		dio, err := os.ReadFile("/sys/block/" + filepath.Base(fields[0]) + "/loop/dio")
		if err != nil || strings.TrimSpace(string(dio)) != "1" {
			t.Errorf("direct I/O is %q, %v", dio, err)
		}
		return
	}
	t.Error("not mounted")
}

func TestMountsAtTheSameTime(t *testing.T) {
	t.Parallel()
	var wg sync.WaitGroup
	for range 4 {
		dir := t.TempDir()
		image, point := filepath.Join(dir, "img"), filepath.Join(dir, "pool")
		if err := errors.Join(os.Mkdir(point, 0o700), MakeImage(t.Context(), image, MinImageBytes, true)); err != nil {
			t.Fatal(err)
		}
		for range 3 { // three for each image: only one may mount it
			wg.Go(func() {
				if err := Mount(t.Context(), image, point); err != nil {
					t.Error(err)
				}
			})
		}
		t.Cleanup(func() {
			if err := UnmountImage(context.Background(), image, point); err != nil {
				t.Error(err)
			}
			if attached(t, image) {
				t.Error("the loop device is still attached")
			}
		})
	}
	wg.Wait()
}

func TestFailedMountLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	image, point := filepath.Join(dir, "img"), filepath.Join(dir, "pool")
	if err := errors.Join(os.Mkdir(point, 0o700), os.WriteFile(image, make([]byte, 1<<20), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := Mount(t.Context(), image, point); sandbox.CodeOf(err) != sandbox.CodeHostSetup {
		t.Errorf("mounted an image without a file system: %v", err)
	}
	if attached(t, image) {
		t.Error("the loop device is still attached")
	}
}

func TestFailedImageLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := tmpfs(t, 1<<20)
	image := filepath.Join(dir, "img")
	for _, sparse := range []bool{true, false} {
		if err := MakeImage(t.Context(), image, MinImageBytes, sparse); err == nil {
			t.Errorf("sparse %v: an image was made on a full disk", sparse)
		}
	}
	if err := MakeImage(t.Context(), image, 1<<20, true); err == nil {
		t.Error("a tiny image was made")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestForeignMountIsRefused(t *testing.T) {
	t.Parallel()
	cfg := mountedImage(t)
	other := filepath.Join(t.TempDir(), "img")
	if err := MakeImage(t.Context(), other, MinImageBytes, true); err != nil {
		t.Fatal(err)
	}
	if err := Mount(t.Context(), other, cfg.Dir); sandbox.CodeOf(err) != sandbox.CodeHostSetup {
		t.Errorf("mount over another pool: %v", err)
	}
	if attached(t, other) {
		t.Error("the loop device is still attached")
	}
}

// Space behind a sparse image counts: here 128 MiB behind an image of 320 MiB.
func TestUsageSeesTheSpaceBehindASparseImage(t *testing.T) {
	t.Parallel()
	dir := tmpfs(t, 128<<20)
	image := filepath.Join(dir, "img")
	if err := MakeImage(t.Context(), image, MinImageBytes, true); err != nil {
		t.Fatal(err)
	}
	unbacked, err := unbackedBytes(image)
	if err != nil || unbacked < MinImageBytes/2 {
		t.Errorf("unbacked %d, %v", unbacked, err)
	}
	p := &Pool{cfg: Config{Dir: t.TempDir(), ImageFile: image, Kind: KindLoopXFS}}
	u, err := p.Usage(t.Context())
	if err != nil || u.FreeBytes > 128<<20 {
		t.Errorf("usage %+v, %v", u, err)
	}
}

func TestPreallocatedImageIsBacked(t *testing.T) {
	t.Parallel()
	image := filepath.Join(t.TempDir(), "img")
	if err := MakeImage(t.Context(), image, MinImageBytes, false); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(image, &st); err != nil {
		t.Fatal(err)
	}
	if unbacked, err := unbackedBytes(image); err != nil || unbacked != 0 {
		t.Errorf("unbacked %d of %d, %v", unbacked, st.Size, err)
	}
}

// TestOrphan removes the image of a mounted pool: the mount is refused for new use and goes away, also while in use.
func TestOrphan(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	image, point := filepath.Join(dir, "img"), filepath.Join(dir, "pool")
	if err := errors.Join(os.Mkdir(point, 0o700), MakeImage(t.Context(), image, MinImageBytes, true), Mount(t.Context(), image, point)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(point, unix.MNT_DETACH) }) // only when the test failed before
	if err := errors.Join(CheckOrphan(dir), CheckOrphan(point), UnmountOrphan(point), CheckOrphan(filepath.Join(dir, "none"))); err != nil {
		t.Fatal(err)
	}
	used, err := os.Create(filepath.Join(point, "used"))
	if err != nil {
		t.Fatal(err)
	}
	defer used.Close()
	if err := os.Remove(image); err != nil {
		t.Fatal(err)
	}
	if err := CheckOrphan(point); sandbox.CodeOf(err) != sandbox.CodeHostSetup || !strings.Contains(sandbox.AsError(err).Remedy, "down --all") {
		t.Errorf("error %v", err)
	}
	for range 2 {
		if err := UnmountOrphan(point); err != nil {
			t.Error(err)
		}
	}
	if left, err := os.ReadDir(point); err != nil || len(left) != 0 {
		t.Errorf("still mounted: %v, %v", left, err)
	}
}
