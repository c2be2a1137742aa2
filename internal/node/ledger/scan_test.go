package ledger

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/space-sandbox/space/internal/datadir"
	"github.com/space-sandbox/space/internal/sandbox"
)

func installation(t *testing.T) *datadir.Dir {
	t.Helper()
	path := t.TempDir()
	dir := &datadir.Dir{Path: path, RunRoot: filepath.Join(path, "r"), Installation: datadir.Installation{ID: "test00", UIDBase: 1 << 29, UIDCount: 100, PoolKind: "copy"}}
	for _, d := range []string{dir.MachinesDir(), dir.RunDir() + "/vm", dir.PoolDir() + "/sandboxes", dir.PoolDir() + "/staging", dir.PoolDir() + "/templates"} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestFileScan(t *testing.T) {
	t.Parallel()
	dir, id := installation(t), string(sandbox.NewID())
	at := findPlaces(dir)
	for _, name := range []string{at.machines + "/" + id + ".json", at.machines + "/" + id + ".json.tmp", at.machines + "/notes", at.sandboxes + "/" + id + "/disk.img",
		at.sandboxes + "/odd/disk.img", at.staging + "/import-a/rootfs.img", at.staging + "/setup-b/rootfs.img", at.pool + "/templates/x/rootfs.img",
		at.vm + "/" + id + "/odd", at.pool + "/odd"} {
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	found, err := fileScan(at)(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range found {
		rel, err := filepath.Rel(real(dir.Path), o.Name)
		if err != nil {
			t.Fatal(err)
		}
		whose := map[string]string{"": "own", id: "sandbox"}[o.Owner]
		if whose == "" {
			whose = o.Owner
		}
		if o.Keep != "" {
			whose += ", kept"
		}
		got = append(got, rel+": "+whose)
	}
	want := []string{
		"node/machines/" + id + ".json: sandbox", "node/machines/" + id + ".json.tmp: sandbox", "node/machines/notes: own, kept", "pool/odd: own, kept",
		"pool/sandboxes/" + id + "/disk.img: sandbox", "pool/sandboxes/" + id + ": sandbox", "pool/sandboxes/odd: own, kept", "pool/staging/import-a: import",
		"r/test00/vm/" + id + "/odd: sandbox", "r/test00/vm/" + id + ": sandbox", "r/test00/vm: own"}
	slices.Sort(want)
	slices.Sort(got)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("files (-want +got):\n%s", d)
	}
}

// TestRemoveFileRemovesNoTree: a directory with something in it stays.
func TestRemoveFileRemovesNoTree(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "full", "inside"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "full"), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for name, gone := range map[string]bool{"full": false, "link": true, "nothing": true} {
		err := removeFile(t.Context(), Object{Name: name, dir: &directory{dir}, path: name})
		_, statErr := os.Lstat(filepath.Join(dir, name))
		if (err == nil) != gone || errors.Is(statErr, fs.ErrNotExist) != gone {
			t.Errorf("%s: %v, then %v", name, err, statErr)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "full", "inside")); err != nil {
		t.Error(err)
	}
}

// TestListening finds exactly the sockets of this process.
func TestListening(t *testing.T) {
	t.Parallel()
	var want []string
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		want = append(want, l.Addr().String())
	}
	inodes := map[string]bool{}
	addSockets(inodes, os.Getpid())
	var got []string
	for _, table := range []string{"tcp", "tcp6"} {
		addrs, err := listening("/proc/self/net/"+table, inodes)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, addrs...)
	}
	for _, w := range want {
		if !slices.Contains(got, w) {
			t.Errorf("%s is not in %v", w, got)
		}
	}
	if others, err := listening("/proc/self/net/tcp", map[string]bool{}); err != nil || len(others) > 0 {
		t.Errorf("of nobody: %v, %v", others, err)
	}
}

func TestParseAddr(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"0100007F:1B9E": "127.0.0.1:7070", "00000000000000000000000001000000:0050": "[::1]:80"} {
		if got, err := parseAddr(in); err != nil || got != want {
			t.Errorf("%s: %s, %v", in, got, err)
		}
	}
	for _, in := range []string{"", ":", "7F:1", "0100007F", "0100007F:12345", "xyz:1", "0100007X:0001", "01000x00:0001"} {
		if got, err := parseAddr(in); err == nil {
			t.Errorf("%s is %s", in, got)
		}
	}
}

func FuzzParseAddr(f *testing.F) {
	f.Add("0100007F:1B9E")
	f.Fuzz(func(t *testing.T, s string) {
		addr, err := parseAddr(s)
		if err != nil {
			return
		}
		if _, port, err := net.SplitHostPort(addr); err != nil {
			t.Errorf("%q: %q", s, addr)
		} else if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			t.Errorf("%q: %q", s, addr)
		}
	})
}

func TestMountsOfThisInstallation(t *testing.T) {
	t.Parallel()
	dir, id := installation(t), string(sandbox.NewID())
	at := findPlaces(dir)
	cfg := Config{Dir: dir}
	for point, want := range map[string]struct{ ours, kept bool }{
		at.sandboxes + "/" + id + "/mnt": {true, false}, at.vm + "/" + id: {true, false}, at.sandboxes + "/odd": {true, true},
		at.staging: {true, true}, at.machines + "/x": {true, true}, at.pool: {false, true}, filepath.Dir(at.pool): {false, false},
		at.pool + "-of-others": {false, false}, "/run/netns/space-other-" + id: {false, false}, "/": {false, false},
	} {
		o, ours := mountObject(cfg, at, point)
		if ours != want.ours || ours && (o.Keep != "") != want.kept {
			t.Errorf("%s: %v, %+v", point, ours, o)
		}
	}
	points, err := mountPoints()
	if err != nil || !slices.Contains(points, "/") {
		t.Errorf("mounts of this host: %v, %v", points, err)
	}
	if got := unescape(`/a\040b\134c`); got != `/a b\c` {
		t.Errorf("%q", got)
	}
}

// TestKindsHaveASource: no kind is counted as 0 because nobody looks.
func TestKindsHaveASource(t *testing.T) {
	t.Parallel()
	dir := installation(t)
	have := map[Kind]bool{}
	for _, s := range sources(Config{Dir: dir, Processes: true}, findPlaces(dir)) {
		for _, k := range s.kinds {
			have[k] = true
		}
	}
	for _, k := range []Kind{Cgroup, Namespace, Tap, NFTTable} { // need more than a directory: tested where they are made
		have[k] = true
	}
	for _, k := range Kinds() {
		if !have[k] {
			t.Errorf("nobody looks for %s", k)
		}
	}
}
