package pool

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/sandbox"
)

// pools makes a pool of each kind. The loop device and the mount belong to the test.
var pools = map[string]func(t *testing.T) *Pool{
	"loop-xfs": func(t *testing.T) *Pool { return openPool(t, mountedImage(t)) },
	"reflink": func(t *testing.T) *Pool {
		cfg := mountedImage(t)
		dir := filepath.Join(cfg.Dir, "inside")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		return openPool(t, Config{Dir: dir, Kind: KindReflink})
	},
	"copy": func(t *testing.T) *Pool { return openPool(t, Config{Dir: tmpfs(t, 256<<20), Kind: KindCopy}) },
}

func mountedImage(t *testing.T) Config {
	t.Helper()
	dir := t.TempDir()
	cfg := Config{Dir: filepath.Join(dir, "pool"), ImageFile: filepath.Join(dir, "pool.img"), Kind: KindLoopXFS}
	if err := os.Mkdir(cfg.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := MakeImage(t.Context(), cfg.ImageFile, 512<<20, true); err != nil {
		t.Fatal(err)
	}
	if err := Mount(t.Context(), cfg.ImageFile, cfg.Dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := UnmountImage(context.Background(), cfg.ImageFile, cfg.Dir); err != nil {
			t.Error(err)
		}
	})
	return cfg
}

func tmpfs(t *testing.T, size int) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=700,size="+strconv.Itoa(size)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// Detached: a process of another test, between fork and exec, may hold files of this one.
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func openPool(t *testing.T, cfg Config) *Pool {
	t.Helper()
	p, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// stageImage stages a sparse image of sizeMiB whose second block is full of fill.
func stageImage(t *testing.T, p *Pool, sizeMiB int, fill byte) (*Stage, Manifest) {
	t.Helper()
	st, err := p.NewStage("test")
	if err != nil {
		t.Fatal(err)
	}
	f, err := st.CreateRootfs()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(int64(sizeMiB) * mib); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(bytes.Repeat([]byte{fill}, 4096), 4096); err != nil {
		t.Fatal(err)
	}
	digest, err := Digest(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	return st, Manifest{Digest: digest, Names: []string{"mini:latest"}, SizeBytes: int64(sizeMiB) * mib, MinDiskMiB: sizeMiB,
		User: "user", Env: map[string]string{"A": "b"}, CreatedAt: fixedTime()}
}

func install(t *testing.T, p *Pool, sizeMiB int, fill byte) Manifest {
	t.Helper()
	st, m := stageImage(t, p, sizeMiB, fill)
	if err := p.InstallTemplate(t.Context(), st, m); err != nil {
		t.Fatal(err)
	}
	return m
}

func forEachKind(t *testing.T, check func(t *testing.T, p *Pool)) {
	t.Parallel()
	for name, open := range pools {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(t, open(t))
		})
	}
}

func TestDiskIsACompleteCopyOfItsTemplate(t *testing.T) {
	forEachKind(t, func(t *testing.T, p *Pool) {
		m := install(t, p, 8, 7)
		id := sandbox.NewID()
		disk, err := p.CreateDisk(t.Context(), id, m.Digest, 64)
		if err != nil {
			t.Fatal(err)
		}
		defer disk.Close()
		info, err := disk.Stat()
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() != 64*mib || info.Mode() != 0o600 {
			t.Errorf("disk: %d bytes, mode %v", info.Size(), info.Mode())
		}
		if _, err := disk.WriteAt([]byte("mine"), 4096); err != nil {
			t.Fatal(err)
		}
		tmpl, err := p.OpenTemplate(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		defer tmpl.Close()
		if got, err := Digest(t.Context(), tmpl.Rootfs); err != nil || got != m.Digest {
			t.Errorf("a write to the disk changed its template: %s, %v", got, err)
		}
		again, err := p.OpenDisk(id)
		if err != nil {
			t.Fatal(err)
		}
		defer again.Close()
		buf := make([]byte, 8)
		if _, err := again.ReadAt(buf, 4096); err != nil || string(buf) != "mine\x07\x07\x07\x07" {
			t.Errorf("read back %q, %v", buf, err)
		}
	})
}

func TestSandboxesComeAndGo(t *testing.T) {
	forEachKind(t, func(t *testing.T, p *Pool) {
		m := install(t, p, 8, 7)
		id := sandbox.NewID()
		disk, err := p.CreateDisk(t.Context(), id, m.Digest, 0)
		if err != nil {
			t.Fatal(err)
		}
		disk.Close()
		if _, err := p.CreateDisk(t.Context(), id, m.Digest, 0); !errors.Is(err, fs.ErrExist) {
			t.Errorf("second create: %v", err)
		}
		if ids, err := p.ListSandboxes(); err != nil || !cmp.Equal(ids, []sandbox.ID{id}) {
			t.Errorf("list: %v, %v", ids, err)
		}
		// The template goes, the disk stays.
		if err := p.RemoveTemplate(m.Digest); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := p.RemoveSandbox(id); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := p.OpenDisk(id); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("open after remove: %v", err)
		}
		if ids, err := p.ListSandboxes(); err != nil || len(ids) != 0 {
			t.Errorf("list: %v, %v", ids, err)
		}
		if _, err := p.CreateDisk(t.Context(), id, m.Digest, 0); sandbox.CodeOf(err) != sandbox.CodeTemplateNotFound {
			t.Errorf("create from a removed template: %v", err)
		}
	})
}

func TestDiskSizeLimits(t *testing.T) {
	forEachKind(t, func(t *testing.T, p *Pool) {
		m := install(t, p, 8, 7)
		for _, size := range []int{7, sandbox.MaxDiskMiB + 1, -1} {
			_, err := p.CreateDisk(t.Context(), sandbox.NewID(), m.Digest, size)
			if sandbox.CodeOf(err) != sandbox.CodeInvalidArgument {
				t.Errorf("%d MiB: %v", size, err)
			}
		}
		if ids, err := p.ListSandboxes(); err != nil || len(ids) != 0 {
			t.Errorf("refused disks left %v, %v", ids, err)
		}
	})
}

func TestCreateDiskAfterACutOffCreate(t *testing.T) {
	forEachKind(t, func(t *testing.T, p *Pool) {
		m := install(t, p, 8, 7)
		id := sandbox.NewID()
		dir := filepath.Join(p.cfg.Dir, sandboxesDir, string(id))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, diskName+".new"), []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
		disk, err := p.CreateDisk(t.Context(), id, m.Digest, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer disk.Close()
		if got, err := Digest(t.Context(), disk); err != nil || got != m.Digest {
			t.Errorf("disk is %s, %v; want %s", got, err, m.Digest)
		}
	})
}

func TestCanceledCreateLeavesNothing(t *testing.T) {
	forEachKind(t, func(t *testing.T, p *Pool) {
		m := install(t, p, 8, 7)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := p.CreateDisk(ctx, sandbox.NewID(), m.Digest, 0); !errors.Is(err, context.Canceled) {
			t.Errorf("create: %v", err)
		}
		if ids, err := p.ListSandboxes(); err != nil || len(ids) != 0 {
			t.Errorf("left %v, %v", ids, err)
		}
	})
}

func TestUsageFollowsWrites(t *testing.T) {
	forEachKind(t, func(t *testing.T, p *Pool) {
		before, err := p.Usage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		m := install(t, p, 8, 7)
		disk, err := p.CreateDisk(t.Context(), sandbox.NewID(), m.Digest, 64)
		if err != nil {
			t.Fatal(err)
		}
		defer disk.Close()
		if _, err := disk.WriteAt(bytes.Repeat([]byte{1}, 32*mib), 16*mib); err != nil {
			t.Fatal(err)
		}
		if err := disk.Sync(); err != nil {
			t.Fatal(err)
		}
		after, err := p.Usage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if after.TotalBytes != before.TotalBytes || after.FreeBytes > before.FreeBytes-32*mib {
			t.Errorf("before %+v, after %+v", before, after)
		}
	})
}

func TestFullPool(t *testing.T) {
	t.Parallel()
	p := openPool(t, Config{Dir: tmpfs(t, 4<<20), Kind: KindCopy})
	m := install(t, p, 8, 7)
	big, err := p.root.OpenFile("ballast", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer big.Close()
	for _, chunk := range []int{mib, 4096} {
		for err == nil {
			_, err = big.Write(make([]byte, chunk))
		}
		err = nil
	}
	id := sandbox.NewID()
	if _, err := p.CreateDisk(t.Context(), id, m.Digest, 0); sandbox.CodeOf(err) != sandbox.CodePoolFull {
		t.Errorf("create on a full pool: %v", err)
	}
	if ids, err := p.ListSandboxes(); err != nil || len(ids) != 0 {
		t.Errorf("left %v, %v", ids, err)
	}
	if err := p.RemoveTemplate(m.Digest); err != nil {
		t.Errorf("remove on a full pool: %v", err)
	}
}

func TestNamesCannotLeaveThePool(t *testing.T) {
	t.Parallel()
	p := openPool(t, Config{Dir: t.TempDir(), Kind: KindCopy})
	for _, digest := range []string{"", "sha256:", "sha256:../../etc", "sha256:" + string(bytes.Repeat([]byte("A"), 64)), "md5:00"} {
		if _, err := p.OpenTemplate(digest); sandbox.CodeOf(err) != sandbox.CodeInvalidArgument {
			t.Errorf("open %q: %v", digest, err)
		}
		if err := p.RemoveTemplate(digest); sandbox.CodeOf(err) != sandbox.CodeInvalidArgument {
			t.Errorf("remove %q: %v", digest, err)
		}
	}
	for _, id := range []sandbox.ID{"", ".", "..", "../templates", "a"} {
		if err := p.RemoveSandbox(id); err == nil {
			t.Errorf("remove %q succeeded", id)
		}
	}
	if err := os.Symlink("/etc", filepath.Join(p.cfg.Dir, sandboxesDir, string(sandbox.NewID()))); err != nil {
		t.Fatal(err)
	}
	ids, err := p.ListSandboxes()
	if err != nil || len(ids) != 1 {
		t.Fatal(ids, err)
	}
	if _, err := p.OpenDisk(ids[0]); err == nil {
		t.Error("opened through a link")
	}
}

func fixedTime() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }
