package setup

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/datadir"
	"github.com/space-sandbox/space/internal/sandbox"
)

var fixedTime = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestBadDataDirs(t *testing.T) {
	t.Parallel()
	good, host := newHost(t)
	top := filepath.Dir(good)
	at := func(name string) string { return filepath.Join(top, name) }
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(at("file"), nil, 0o600))
	for name, mode := range map[string]os.FileMode{"open": 0o777, "closed": 0o700, "foreign": 0o755, "full": 0o755} {
		must(os.Mkdir(at(name), 0o755))
		must(os.Chmod(at(name), mode))
	}
	must(os.Chown(at("foreign"), 1234, 1234))
	must(os.WriteFile(at("full/somebody.txt"), nil, 0o600))
	must(os.Symlink(at("foreign"), at("link")))
	for path, cause := range map[string]string{
		"relative/dir":               "not absolute",
		"":                           "not absolute",
		"/":                          "root directory",
		at("x") + "/../y":            "shortest form",
		at("line\nbreak"):            "not printable",
		at(strings.Repeat("x", 300)): "longer than",
		"/" + strings.Repeat("x/", datadir.MaxPath) + "x": "at most",
		at("file"):         "not a directory",
		at("file/below"):   "not a directory",
		at("open/data"):    "written by others",
		at("open"):         "written by others",
		at("closed/data"):  "cannot pass",
		at("foreign/data"): "does not belong to root",
		at("link/data"):    "does not belong to root",
		at("full"):         "not of SPACE",
	} {
		_, err := runSetup(t, copyOptions(path), host)
		se := sandbox.AsError(err)
		if se.Code != sandbox.CodeHostSetup || !strings.Contains(se.Cause, cause) || se.Remedy == "" {
			t.Errorf("%.60q: want a cause with %q, got %+v", path, cause, se)
		}
	}
}

func TestInstallationsHaveTheirOwnUIDs(t *testing.T) {
	t.Parallel()
	first, host := newHost(t)
	top := filepath.Dir(first)
	if err := os.WriteFile(filepath.Join(top, "etc/subuid"), []byte("someone:1879048192:65536\nbroken\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	a := mustSetup(t, copyOptions(first), host).Dir.Installation
	b := mustSetup(t, copyOptions(filepath.Join(top, "second")), host).Dir.Installation
	if a.UIDBase < 1879048192+65536 || b.UIDBase != a.UIDBase+a.UIDCount || a.ID == b.ID {
		t.Errorf("a %+v, b %+v", a, b)
	}
	// The first is given up: its range is free for a third, and the second keeps its own.
	if err := os.RemoveAll(first); err != nil {
		t.Fatal(err)
	}
	c := mustSetup(t, copyOptions(filepath.Join(top, "third")), host).Dir.Installation
	if c.UIDBase != a.UIDBase {
		t.Errorf("third has %d, the free range is %d", c.UIDBase, a.UIDBase)
	}
	again := mustSetup(t, copyOptions(filepath.Join(top, "second")), host).Dir.Installation
	if again != b {
		t.Errorf("second became %+v", again)
	}
}

func TestACopiedDataDirIsRefused(t *testing.T) {
	t.Parallel()
	dir, host := newHost(t)
	mustSetup(t, copyOptions(dir), host)
	twin := dir + "-copy"
	if err := os.CopyFS(twin, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	_, err := runSetup(t, copyOptions(twin), host)
	if sandbox.CodeOf(err) != sandbox.CodeHostSetup || !strings.Contains(err.Error(), "same uids") {
		t.Errorf("error %v", err)
	}
}

func TestBundle(t *testing.T) {
	t.Parallel()
	dir, host := newHost(t)
	bundleDir := filepath.Join(filepath.Dir(dir), "bundle")
	opts := copyOptions(dir)
	opts.AssetsDir = bundleDir
	if _, err := runSetup(t, opts, host); sandbox.CodeOf(err) != sandbox.CodeHostSetup {
		t.Errorf("setup without the bundle: %v", err)
	}
	build := func(templates ...string) {
		t.Helper()
		if err := BuildAssets(t.Context(), bundleDir, templates, host, NewReporter(t.Output(), false)); err != nil {
			t.Fatal(err)
		}
	}
	build("mini")
	offline := host
	offline.BuildGuest, offline.BuildTemplate = nil, nil
	if _, err := runSetup(t, opts, offline); err == nil || !strings.Contains(err.Error(), "no template base") {
		t.Errorf("setup from half a bundle: %v", err)
	}
	build("mini", "base")
	mustSetup(t, opts, offline)
	// A newer bundle replaces the files; nothing of the old one stays.
	if err := os.WriteFile(filepath.Join(dir, "node/guest/vmlinux-old"), nil, 0o444); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "node/guest/manifest.json")); err != nil {
		t.Fatal(err)
	}
	mustSetup(t, opts, offline)
	if files, err := os.ReadDir(filepath.Join(dir, "node/guest")); err != nil || len(files) != 3 {
		t.Errorf("guest files %v, %v", files, err)
	}

	damaged := filepath.Join(filepath.Dir(dir), "other")
	files, err := filepath.Glob(filepath.Join(bundleDir, "pool/templates/*/rootfs.img"))
	if err != nil || len(files) != 2 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		if err := os.WriteFile(f, make([]byte, 2<<20), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	opts.DataDir = damaged
	if _, err := runSetup(t, opts, offline); err == nil || !strings.Contains(err.Error(), "bundle") {
		t.Errorf("setup from a damaged bundle: %v", err)
	}
	offline.Agent = func() ([]byte, error) { return []byte("another version"), nil }
	opts.DataDir = damaged
	if _, err := runSetup(t, opts, offline); err == nil || !strings.Contains(err.Error(), "bundle") {
		t.Errorf("setup from a bundle of another version: %v", err)
	}
}

// A record that cannot be read is made again from the host's list; without an entry there it is left as it is.
func TestDamagedRecord(t *testing.T) {
	t.Parallel()
	dir, host := newHost(t)
	want := mustSetup(t, copyOptions(dir), host).Dir.Installation
	record := filepath.Join(dir, "installation.json")
	if err := os.WriteFile(record, []byte(`{"id":"other"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := datadir.Open(dir); sandbox.CodeOf(err) != sandbox.CodeHostSetup {
		t.Errorf("an incomplete record opens: %v", err)
	}
	if err := os.WriteFile(record, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	other := mustSetup(t, copyOptions(filepath.Join(filepath.Dir(dir), "other")), host).Dir.Installation
	if other.UIDBase == want.UIDBase || other.ID == want.ID {
		t.Errorf("another installation took what the damaged one has: %+v", other)
	}
	opts := copyOptions(dir)
	opts.PoolKind = "" // what it was is lost as well
	res := mustSetup(t, opts, host)
	if d := cmp.Diff(want, res.Dir.Installation); d != "" || len(res.Warnings) == 0 {
		t.Errorf("restored otherwise, or without a word (%q): %s", res.Warnings, d)
	}

	if err := errors.Join(os.WriteFile(record, []byte("{"), 0o644), os.RemoveAll(host.ConfigDir)); err != nil {
		t.Fatal(err)
	}
	if _, err := runSetup(t, opts, host); sandbox.CodeOf(err) != sandbox.CodeHostSetup {
		t.Errorf("error %v", err)
	}
	if data, err := os.ReadFile(record); err != nil || string(data) != "{" {
		t.Errorf("the record is %q now, %v", data, err)
	}
}

// A directory that was removed, perhaps while it was in use, gets back the id and the uids that it had.
func TestRemovedDataDir(t *testing.T) {
	t.Parallel()
	dir, host := newHost(t)
	was := mustSetup(t, copyOptions(dir), host).Dir.Installation
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if in, found, err := host.Claimed(dir); err != nil || !found || in.ID != was.ID || in.UIDBase != was.UIDBase {
		t.Errorf("the host remembers %+v, %v, %v", in, found, err)
	}
	if is := mustSetup(t, copyOptions(dir), host).Dir.Installation; is != was {
		t.Errorf("was %+v, is %+v", was, is)
	}
}

// TestLeftovers: a directory that is gone counts while something of it is left in the kernel, one that is there does not.
func TestLeftovers(t *testing.T) {
	t.Parallel()
	dir, host := newHost(t)
	d := mustSetup(t, copyOptions(dir), host).Dir
	left := func(want ...string) {
		t.Helper()
		got, err := host.Leftovers()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("leftovers (-want +got):\n%s", diff)
		}
	}
	run := (&datadir.Dir{Installation: d.Installation}).RunDir()
	if err := os.MkdirAll(run, 0o711); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(run) })
	left()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	left(dir)
	if err := os.Remove(run); err != nil {
		t.Fatal(err)
	}
	left()
	// A setup that was given up after it had mounted its pool.
	if err := os.MkdirAll(d.PoolDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", d.PoolDir(), "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(d.PoolDir(), unix.MNT_DETACH) }()
	left(dir)
}

func TestMovedDataDir(t *testing.T) {
	t.Parallel()
	dir, host := newHost(t)
	d := mustSetup(t, copyOptions(dir), host).Dir
	if err := host.CheckClaim(d); err != nil {
		t.Error(err)
	}
	moved := &datadir.Dir{Path: dir + "-moved", Installation: d.Installation}
	if err := os.Rename(dir, moved.Path); err != nil {
		t.Fatal(err)
	}
	if err := host.CheckClaim(moved); sandbox.CodeOf(err) != sandbox.CodeHostSetup || !strings.Contains(sandbox.AsError(err).Remedy, moved.Path) {
		t.Errorf("error %v", err)
	}
	if is := mustSetup(t, copyOptions(moved.Path), host).Dir.Installation; is != d.Installation {
		t.Errorf("was %+v, is %+v", d.Installation, is)
	}
	if err := host.CheckClaim(moved); err != nil {
		t.Error(err)
	}
}

func TestParseDepends(t *testing.T) {
	t.Parallel()
	got, err := parseDepends([]byte("linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-41-cloud-amd64\n"))
	if err != nil || got != "linux-image-6.1.0-41-cloud-amd64" {
		t.Errorf("%q, %v", got, err)
	}
	for _, bad := range []string{"", "Depends: <virtual>", "Depends: linux-image-a;b", "Depends: -o"} {
		if got, err := parseDepends([]byte(bad)); err == nil {
			t.Errorf("%q gave %q", bad, got)
		}
	}
}

func TestRecordKeepsAllFields(t *testing.T) {
	t.Parallel()
	want := record{datadir.Installation{ID: "abcdef", UIDBase: 1, UIDCount: 2, ControlUID: 3, ControlGID: 4, GatewayUID: 5, GatewayGID: 6, PoolKind: "copy"}}
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := want.save(root, recordFile, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := loadRecord(root)
	if err != nil || *got != want {
		t.Errorf("%+v, %v", got, err)
	}
	if data, err := json.Marshal(want); err != nil || !strings.Contains(string(data), `"id":"abcdef"`) {
		t.Errorf("%s, %v", data, err)
	}
}
