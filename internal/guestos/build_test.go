package guestos

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cavaliergopher/cpio"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/guestos/bootconf"
)

func buildConfig(t testing.TB, dir string) BuildConfig {
	return BuildConfig{KernelDeb: bytes.NewReader(kernelDeb(t)), Agent: []byte("agent"), AgentVersion: "1.2", Dir: dir}
}

func testBootConfig() bootconf.Config {
	return bootconf.Config{Token: strings.Repeat("t0", 16), SandboxID: "sbx_1"}
}

func openBuilt(t *testing.T) *Assets {
	t.Helper()
	dir := t.TempDir()
	if _, err := Build(t.Context(), buildConfig(t, dir)); err != nil {
		t.Fatal(err)
	}
	assets, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { assets.Close() })
	return assets
}

func namesIn(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestBuildAndOpen(t *testing.T) {
	t.Parallel()
	assets := openBuilt(t)
	m := assets.Manifest()
	if m.KernelVersion != "6.1.0-9-cloud" || m.AgentVersion != "1.2" {
		t.Errorf("manifest: %+v", m)
	}
	kernel, err := assets.OpenKernel()
	if err != nil {
		t.Fatal(err)
	}
	defer kernel.Close()
	got, err := io.ReadAll(kernel)
	if err != nil || !bytes.Equal(got, elfKernel(10_000)) {
		t.Errorf("the kernel has %d bytes and is another one (%v)", len(got), err)
	}
}

func TestInitramfs(t *testing.T) {
	t.Parallel()
	assets := openBuilt(t)
	f, err := assets.OpenInitramfs()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var names []string
	archive := cpio.NewReader(f)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
	var want []string
	want = append(want, "dev", "dev/console", "proc", "sys", "newroot", "modules")
	for i, m := range assets.Manifest().Modules {
		want = append(want, "modules/0"+string(rune('0'+i))+"-"+m+".ko")
	}
	want = append(want, "init")
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("initramfs (-want +got):\n%s", diff)
	}
}

func TestRebuildReplacesAndTidiesUp(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, leftover := range []string{".new-ABC", ".new-package/boot/vmlinuz-1", "vmlinux-0123", "other"} {
		path := filepath.Join(dir, leftover)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte("x"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	first, err := Build(t.Context(), buildConfig(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	running, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer running.Close()
	c := buildConfig(t, dir)
	c.Agent = []byte("newer agent")
	second, err := Build(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if first.Kernel != second.Kernel || first.Initramfs == second.Initramfs {
		t.Errorf("manifests: %+v, then %+v", first, second)
	}
	want := []string{second.Initramfs.Name, "manifest.json", "other", second.Kernel.Name}
	if diff := cmp.Diff(want, namesIn(t, dir)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	initrd, err := running.MachineInitrd(testBootConfig())
	if err != nil {
		t.Fatalf("a node that has the old files open: %v", err)
	}
	initrd.Close()
}

func TestFailedBuildChangesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := Build(t.Context(), buildConfig(t, dir)); err != nil {
		t.Fatal(err)
	}
	before := namesIn(t, dir)
	content := tarOf(t, debFile("boot/vmlinuz-1", bzImage(elfKernel(500))))
	for name, deb := range map[string][]byte{
		"no modules": debOf("data.tar", content),
		"no kernel":  debOf("data.tar", tarOf(t, debFile("usr/share/doc", nil))),
		"cut off":    kernelDeb(t)[:2000],
	} {
		c := buildConfig(t, dir)
		c.KernelDeb = bytes.NewReader(deb)
		if _, err := Build(t.Context(), c); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if diff := cmp.Diff(before, namesIn(t, dir)); diff != "" {
		t.Errorf("files (-before +after):\n%s", diff)
	}
	assets, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	assets.Close()
}

func TestOpenRefusesDamage(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(dir string, m Manifest) error{
		"changed kernel": func(dir string, m Manifest) error {
			path := filepath.Join(dir, m.Kernel.Name)
			return errors.Join(os.Chmod(path, 0o600), os.WriteFile(path, make([]byte, m.Kernel.Size), 0o600))
		},
		"short initramfs": func(dir string, m Manifest) error {
			return os.Truncate(filepath.Join(dir, m.Initramfs.Name), m.Initramfs.Size-1)
		},
		"no manifest": func(dir string, _ Manifest) error { return os.Remove(filepath.Join(dir, manifestFile)) },
		"other name": func(dir string, m Manifest) error {
			root, err := os.OpenRoot(dir)
			if err != nil {
				return err
			}
			defer root.Close()
			m.Kernel.Name = "../" + m.Kernel.Name
			return writeManifest(root, m)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			m, err := Build(t.Context(), buildConfig(t, dir))
			if err != nil {
				t.Fatal(err)
			}
			if err := damage(dir, m); err != nil {
				t.Fatal(err)
			}
			if assets, err := Open(dir); err == nil {
				assets.Close()
				t.Error("accepted")
			}
		})
	}
}

func TestMachineInitrdIsSealed(t *testing.T) {
	t.Parallel()
	assets := openBuilt(t)
	initrd, err := assets.MachineInitrd(testBootConfig())
	if err != nil {
		t.Fatal(err)
	}
	defer initrd.Close()
	if _, err := initrd.WriteAt([]byte("x"), 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("write: %v, want EPERM", err)
	}
	if err := initrd.Truncate(1); !errors.Is(err, unix.EPERM) {
		t.Errorf("truncate: %v, want EPERM", err)
	}
	data, err := io.ReadAll(initrd)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(data, []byte(testBootConfig().Token)) || !bytes.HasPrefix(data, []byte("070701")) {
		t.Error("it is not the initramfs with the boot configuration behind it")
	}
	if _, err := assets.MachineInitrd(bootconf.Config{}); err == nil {
		t.Error("an empty boot configuration was accepted")
	}
}

func TestBuildNeedsItsDirectory(t *testing.T) {
	t.Parallel()
	_, err := Build(t.Context(), buildConfig(t, filepath.Join(t.TempDir(), "absent")))
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, want that the directory does not exist", err)
	}
}
