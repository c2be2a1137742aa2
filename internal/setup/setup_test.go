package setup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/datadir"
	"github.com/space-sandbox/space/internal/doctor"
	"github.com/space-sandbox/space/internal/guestos"
	"github.com/space-sandbox/space/internal/pool"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/template"
)

// Environment of a setup that runs as a process of its own, so that it can be killed.
const (
	childDir  = "SPACE_SETUP_TEST_DIR"
	childKill = "SPACE_SETUP_TEST_KILL"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		os.Exit(child(dir, os.Getenv(childKill)))
	}
	os.Exit(m.Run())
}

// child sets up dir, prints each point on the way and dies at the one named kill.
func child(dir, kill string) int {
	host := fakeHost(filepath.Dir(dir))
	host.At = func(point string) {
		fmt.Println(point)
		if point == kill {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	}
	_, err := Run(context.Background(), loopOptions(dir), host, NewReporter(io.Discard, false), slog.New(slog.DiscardHandler))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// fakeHost replaces what needs packages, users and a network. The directory holds its /etc.
func fakeHost(dir string) Host {
	h := Host{ConfigDir: filepath.Join(dir, "etc/space"), EtcDir: filepath.Join(dir, "etc")}
	h.MissingPackages = func([]doctor.Package) []string { return nil }
	h.EnsureUser = func(_ context.Context, name string) (Account, error) {
		return map[string]Account{ControlUser: {UID: 901, GID: 901}, GatewayUser: {UID: 902, GID: 902}}[name], nil
	}
	h.Agent = func() ([]byte, error) { return []byte("agent"), nil }
	h.BuildGuest = func(_ context.Context, agent []byte, dir, _ string, _ func(string)) (guestos.Manifest, error) {
		return fakeGuest(agent, dir)
	}
	h.BuildTemplate = func(ctx context.Context, r template.Recipe, work string, st *pool.Stage, _ func(string)) (pool.Manifest, error) {
		if err := os.WriteFile(filepath.Join(work, "rest"), nil, 0o600); err != nil { // what a killed build leaves
			return pool.Manifest{}, err
		}
		m, err := fakeImage(ctx, r.Name, st)
		if err != nil {
			return m, err
		}
		return m, os.Remove(filepath.Join(work, "rest"))
	}
	return h
}

func fakeGuest(agent []byte, dir string) (guestos.Manifest, error) {
	file := func(name, text string) guestos.File {
		sum := sha256.Sum256([]byte(text))
		return guestos.File{Name: name, Size: int64(len(text)), SHA256: hex.EncodeToString(sum[:])}
	}
	sum := sha256.Sum256(agent)
	m := guestos.Manifest{KernelVersion: "6.1-test", AgentSHA256: hex.EncodeToString(sum[:]),
		Kernel: file("vmlinux-1", "kernel"), Initramfs: file("initramfs-1.cpio", "initramfs")}
	data, err := json.Marshal(m)
	if err != nil {
		return m, err
	}
	for _, f := range []struct{ name, text string }{{"vmlinux-1", "kernel"}, {"initramfs-1.cpio", "initramfs"}, {"manifest.json", string(data)}} {
		if err := os.WriteFile(filepath.Join(dir, f.name), []byte(f.text), 0o600); err != nil {
			return m, err
		}
	}
	return m, nil
}

func fakeImage(ctx context.Context, name string, st *pool.Stage) (pool.Manifest, error) {
	f, err := st.CreateRootfs()
	if err != nil {
		return pool.Manifest{}, err
	}
	defer f.Close()
	if _, err := f.Write(bytes.Repeat([]byte(name), 4096)); err != nil {
		return pool.Manifest{}, err
	}
	if err := f.Truncate(2 << 20); err != nil {
		return pool.Manifest{}, err
	}
	digest, err := pool.Digest(ctx, f)
	return pool.Manifest{Digest: digest, Names: []string{name + ":latest"}, SizeBytes: 2 << 20, MinDiskMiB: 2, User: "user",
		CreatedAt: fixedTime}, err
}

// copyOptions make a pool without a mount; loopOptions one with.
func copyOptions(dir string) Options {
	return Options{DataDir: dir, Templates: []string{"mini", "base"}, PoolKind: pool.KindCopy}
}

func loopOptions(dir string) Options {
	return Options{DataDir: dir, Templates: []string{"mini"}, PoolKind: pool.KindLoopXFS, PoolBytes: pool.MinImageBytes, PoolSparse: true}
}

// newHost makes a directory that the checks of the path accept, with an /etc in it.
func newHost(t *testing.T) (dataDir string, host Host) {
	t.Helper()
	dir, err := os.MkdirTemp("", "space-setup-test-") // t.TempDir has a parent that others may not pass
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "data"), fakeHost(dir)
}

func unmountPool(t *testing.T, dataDir string) {
	t.Cleanup(func() {
		d := &datadir.Dir{Path: dataDir, Installation: datadir.Installation{PoolKind: string(pool.KindLoopXFS)}}
		if err := pool.Unmount(context.Background(), d); err != nil {
			t.Error(err)
		}
	})
}

func runSetup(t *testing.T, opts Options, host Host) (Result, error) {
	t.Helper()
	return Run(t.Context(), opts, host, NewReporter(t.Output(), false), slog.New(slog.DiscardHandler))
}

func mustSetup(t *testing.T, opts Options, host Host) Result {
	t.Helper()
	res, err := runSetup(t, opts, host)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// snapshot lists every name below the data directory with mode and owner; the pool's image is one file.
func snapshot(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		out = append(out, fmt.Sprintf("%s %v %d:%d", strings.TrimPrefix(path, dir), info.Mode(), st.Uid, st.Gid))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

var wantTree = []string{
	" drwx--x--x 0:0", "/admin.key -rw------- 0:0", "/control drwx------ 901:901", "/control/admin.hash -rw------- 901:901",
	"/installation.json -rw-r--r-- 0:0", "/node drwx------ 0:0", "/node/guest drwx------ 0:0",
	"/node/guest/initramfs-1.cpio -rw------- 0:0", "/node/guest/manifest.json -rw------- 0:0",
	"/node/guest/vmlinux-1 -rw------- 0:0", "/node/machines drwx------ 0:0", "/pool drwx------ 0:0", "/pool/sandboxes drwx------ 0:0",
	"/pool/staging drwx------ 0:0", "/pool/templates drwx------ 0:0",
}

func TestSetupMakesTheWholeDirectory(t *testing.T) {
	t.Parallel()
	dir, host := newHost(t)
	res := mustSetup(t, copyOptions(dir), host)
	got := snapshot(t, dir)
	for _, want := range wantTree {
		if !strings.Contains(strings.Join(got, "\n")+"\n", want+"\n") {
			t.Errorf("missing %q in\n%s", want, strings.Join(got, "\n"))
		}
	}
	if !res.NewKey || len(res.Warnings) != 1 {
		t.Errorf("result %+v", res)
	}
	opened, err := datadir.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	in := opened.Installation
	if len(in.ID) != 6 || in.UIDBase < firstUID || in.UIDCount != uidCount || in.ControlUID != 901 || in.GatewayGID != 902 || in.PoolKind != "copy" {
		t.Errorf("installation %+v", in)
	}
	text, err := os.ReadFile(opened.AdminKeyFile())
	if err != nil {
		t.Fatal(err)
	}
	key, err := auth.ParseKey(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	hash, err := os.ReadFile(opened.AdminHashFile())
	if err != nil {
		t.Fatal(err)
	}
	if h, err := auth.ParseKeyHash(string(hash)); err != nil || !h.Equal(auth.Hash(key)) {
		t.Errorf("hash %s, %v", hash, err)
	}
}

func TestSecondSetupChangesNothing(t *testing.T) {
	t.Parallel()
	dir, host := newHost(t)
	mustSetup(t, copyOptions(dir), host)
	before := snapshot(t, dir)
	key, err := os.ReadFile(filepath.Join(dir, "admin.key"))
	if err != nil {
		t.Fatal(err)
	}
	host.BuildTemplate, host.BuildGuest = nil, nil // must not be needed again
	res := mustSetup(t, copyOptions(dir), host)
	if diff := cmp.Diff(before, snapshot(t, dir)); diff != "" {
		t.Errorf("second run (-first +second):\n%s", diff)
	}
	if again, err := os.ReadFile(filepath.Join(dir, "admin.key")); err != nil || !bytes.Equal(key, again) || res.NewKey {
		t.Errorf("the key changed: %v, %v", res.NewKey, err)
	}
}

func TestNewAgentRenewsTheGuest(t *testing.T) {
	t.Parallel()
	dir, host := newHost(t)
	mustSetup(t, copyOptions(dir), host)
	host.Agent = func() ([]byte, error) { return []byte("new agent"), nil }
	mustSetup(t, copyOptions(dir), host)
	if _, ok := currentGuest(filepath.Join(dir, "node/guest"), []byte("new agent")); !ok {
		t.Error("the guest still has the old agent")
	}
}

// Whatever was killed wherever: the next run finishes, and the result is the same as of one run.
func TestKilledAtAnyPoint(t *testing.T) {
	t.Parallel()
	runChild := func(t *testing.T, dir, kill string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
		cmd.Env = append(os.Environ(), childDir+"="+dir, childKill+"="+kill)
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil && kill == "" {
			t.Fatalf("%v: %s", err, errs.String())
		}
		return string(out), err
	}
	whole, _ := newHost(t)
	unmountPool(t, whole)
	out, _ := runChild(t, whole, "")
	want := snapshot(t, whole)
	points := strings.Fields(strings.ReplaceAll(out, " ", "_"))
	if len(points) < len(steps())+6 {
		t.Fatalf("points %q", points)
	}
	for _, point := range points {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			dir, _ := newHost(t)
			unmountPool(t, dir)
			if _, err := runChild(t, dir, strings.ReplaceAll(point, "_", " ")); err == nil {
				t.Fatal("it was not killed")
			}
			if _, err := datadir.Open(dir); sandbox.CodeOf(err) != sandbox.CodeHostSetup {
				t.Errorf("half a setup opens: %v", err)
			}
			runChild(t, dir, "")
			if diff := cmp.Diff(want, snapshot(t, dir)); diff != "" {
				t.Errorf("after kill and second run (-whole +got):\n%s", diff)
			}
		})
	}
}

func TestStoppedSetupGoesOn(t *testing.T) {
	t.Parallel()
	dir, host := newHost(t)
	ctx, cancel := context.WithCancel(t.Context())
	stopping := host
	stopping.At = func(point string) {
		if point == "template mini: built" {
			cancel()
		}
	}
	_, err := Run(ctx, copyOptions(dir), stopping, NewReporter(t.Output(), false), slog.New(slog.DiscardHandler))
	if sandbox.CodeOf(err) != sandbox.CodeCanceled {
		t.Errorf("error %v", err)
	}
	if left, err := os.ReadDir(filepath.Join(dir, "pool/staging")); err != nil || len(left) != 0 {
		t.Errorf("staging has %v, %v", left, err)
	}
	mustSetup(t, copyOptions(dir), host)
}

func TestSecondSetupAtTheSameTimeNamesTheFirst(t *testing.T) {
	t.Parallel()
	dir, host := newHost(t)
	var inner error
	first := host
	first.At = func(point string) {
		if point == "users" {
			_, inner = runSetup(t, copyOptions(dir), host)
		}
	}
	mustSetup(t, copyOptions(dir), first)
	if sandbox.CodeOf(inner) != sandbox.CodeHostSetup || !strings.Contains(inner.Error(), fmt.Sprintf("process %d", os.Getpid())) {
		t.Errorf("error %v", inner)
	}
}

func TestMissingPackages(t *testing.T) {
	t.Parallel()
	dir, host := newHost(t)
	missing := []string{"xfsprogs", "mmdebstrap"}
	host.MissingPackages = func([]doctor.Package) []string { return missing }
	_, err := runSetup(t, copyOptions(dir), host)
	if se := sandbox.AsError(err); se.Code != sandbox.CodeHostSetup || !strings.Contains(se.Remedy, "apt-get install xfsprogs mmdebstrap") {
		t.Errorf("error %+v", se)
	}
	opts := copyOptions(dir)
	opts.Install = true
	host.InstallPackages = func(_ context.Context, names []string, _ func(string)) error {
		if !cmp.Equal(names, []string{"xfsprogs", "mmdebstrap"}) {
			t.Errorf("installs %v", names)
		}
		missing = nil
		return nil
	}
	mustSetup(t, opts, host)
}

func TestFullDisk(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]func(string) Options{"copy": copyOptions, "loop-xfs": loopOptions} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, host := newHost(t)
			if err := os.Mkdir(dir, 0o711); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=711,size=65536"); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				// Detached: a process that another test is just starting may hold a descriptor until its exec.
				if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
					t.Error(err)
				}
			})
			_, err := runSetup(t, opts(dir), host)
			if se := sandbox.AsError(err); se.Code != sandbox.CodeHostSetup || se.Remedy == "" || !strings.Contains(se.Error(), "space") {
				t.Errorf("error %+v", se)
			}
			for _, rest := range []string{"installation.json", "pool.img", "pool.img.new"} {
				if _, err := os.Lstat(filepath.Join(dir, rest)); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%s is left (%v)", rest, err)
				}
			}
			if left, _ := filepath.Glob(filepath.Join(dir, "pool/staging/*")); len(left) != 0 {
				t.Errorf("left %v", left)
			}
		})
	}
}
