package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/space-sandbox/space/internal/datadir"
	"github.com/space-sandbox/space/internal/pool"
)

// asNobody makes the test binary print the checks instead of running tests: as a user without privileges.
const asNobody = "SPACE_DOCTOR_TEST_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(asNobody); dir != "" {
		results := Run(context.Background(), Config{DataDir: dir, Ports: []string{"127.0.0.1:0"}, Logger: slog.New(slog.DiscardHandler)})
		if err := WriteJSON(os.Stdout, results); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func examine(t *testing.T, cfg Config) map[string]Check {
	t.Helper()
	cfg.Logger = slog.New(slog.DiscardHandler)
	if cfg.Ports == nil {
		cfg.Ports = []string{"127.0.0.1:0"}
	}
	return byName(t, Run(t.Context(), cfg))
}

func byName(t *testing.T, results []Check) map[string]Check {
	t.Helper()
	out := map[string]Check{}
	for _, c := range results {
		if c.Name == "" || c.Found == "" || out[c.Name].Name != "" {
			t.Errorf("a check without a name or a finding, or twice: %+v", c)
		}
		if c.Status == Fail && (c.Cause == "" || c.Fix == "") {
			t.Errorf("a failure without cause or fix: %+v", c)
		}
		if c.Status == OK && c.Cause+c.Fix != "" {
			t.Errorf("all is well, but: %+v", c)
		}
		out[c.Name] = c
	}
	if len(out) != len(checks()) {
		t.Errorf("%d checks, want %d", len(out), len(checks()))
	}
	return out
}

func expect(t *testing.T, got map[string]Check, want map[string]Status) {
	t.Helper()
	for name, status := range want {
		if got[name].Status != status {
			t.Errorf("%s: want %s, got %+v", name, status, got[name])
		}
	}
}

func TestBeforeSetup(t *testing.T) {
	t.Parallel()
	dir := reachable(t)
	got := examine(t, Config{DataDir: filepath.Join(dir, "data")})
	expect(t, got, map[string]Status{"root": OK, "kernel": OK, "clock": OK, "tun": OK, "namespaces": OK, "nftables": OK, "data directory": OK,
		"installation": Fail, "users": Fail, "pool": Fail, "guest": Fail, "templates": Fail, "ports": OK})
	if fix := got["installation"].Fix; !strings.Contains(fix, "space setup --data-dir "+dir) {
		t.Errorf("fix is %q", fix)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("doctor made %v, %v", left, err)
	}
}

// reachable makes a directory that others may pass.
func reachable(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "space-doctor-test-") // t.TempDir has a parent that others may not pass
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// installed makes a directory that looks set up, but lacks the guest and templates.
func installed(t *testing.T, kind pool.Kind) *datadir.Dir {
	t.Helper()
	d := &datadir.Dir{Path: reachable(t), Installation: datadir.Installation{ID: "doctor", UIDBase: 1 << 30, UIDCount: 16,
		ControlUID: 901, GatewayUID: 902, PoolKind: string(kind)}}
	data, err := json.Marshal(d.Installation)
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{d.ControlDir(), d.NodeDir(), d.GuestDir(), d.PoolDir()} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(d.InstallationFile(), data, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.AdminKeyFile(), []byte("key"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(d.ControlDir(), 901, 901); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDamagedInstallation(t *testing.T) {
	t.Parallel()
	d := installed(t, pool.KindCopy)
	got := examine(t, Config{DataDir: d.Path})
	expect(t, got, map[string]Status{"installation": OK, "uid range": OK, "pool": Warn, "users": Fail, "guest": Fail, "templates": Fail, "space": OK})

	if err := os.Chmod(d.AdminKeyFile(), 0o644); err != nil {
		t.Fatal(err)
	}
	expect(t, examine(t, Config{DataDir: d.Path}), map[string]Status{"installation": Fail})
	if err := os.Chmod(d.Path, 0o777); err != nil {
		t.Fatal(err)
	}
	expect(t, examine(t, Config{DataDir: d.Path}), map[string]Status{"data directory": Fail})
}

func TestLeftovers(t *testing.T) {
	t.Parallel()
	cfg := Config{DataDir: reachable(t), Leftovers: func() ([]string, error) { return nil, nil }}
	expect(t, examine(t, cfg), map[string]Status{"leftovers": OK})
	cfg.Leftovers = func() ([]string, error) { return []string{"/gone", "/lost"}, nil }
	got := examine(t, cfg)
	expect(t, got, map[string]Status{"leftovers": Warn})
	if fix := got["leftovers"].Fix; fix != "space down --all --data-dir /gone; space down --all --data-dir /lost" {
		t.Errorf("fix: %s", fix)
	}
	cfg.Leftovers = func() ([]string, error) { return nil, errors.New("the list is damaged") }
	expect(t, examine(t, cfg), map[string]Status{"leftovers": Fail})
}

func TestPoolThatIsNotMounted(t *testing.T) {
	t.Parallel()
	d := installed(t, pool.KindLoopXFS)
	if err := os.WriteFile(d.PoolImage(), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	expect(t, examine(t, Config{DataDir: d.Path}), map[string]Status{"pool": Warn, "templates": Warn})
}

func TestTakenPort(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got := examine(t, Config{DataDir: reachable(t), Ports: []string{l.Addr().String()}})
	expect(t, got, map[string]Status{"ports": Warn})
	expect(t, examine(t, Config{DataDir: reachable(t), Ports: []string{"192.0.2.1:1"}}), map[string]Status{"ports": Fail})
}

func TestWithoutRoot(t *testing.T) {
	t.Parallel()
	dir := reachable(t)
	binary := filepath.Join(dir, "doctor.test")
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(binary, self, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), binary)
	cmd.Env = []string{asNobody + "=" + installed(t, pool.KindCopy).Path, "PATH=/usr/bin:/bin"}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var answer struct {
		Status Status
		Checks []Check
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		t.Fatal(err)
	}
	got := byName(t, answer.Checks)
	expect(t, got, map[string]Status{"root": Warn, "namespaces": Warn, "nftables": Warn, "guest": Warn, "kvm": Warn, "installation": OK})
}

func TestOutput(t *testing.T) {
	t.Parallel()
	results := []Check{{Name: "a", Status: OK, Found: "fine"}, {Name: "b", Status: Warn, Found: "slow", Cause: "old", Fix: "new"}}
	var text, data bytes.Buffer
	if err := WriteText(&text, results); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"ok    a", "warn  b", "why: old", "fix: new"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, text.String())
		}
	}
	if err := WriteJSON(&data, results); err != nil || !strings.Contains(data.String(), `"status": "warn"`) {
		t.Errorf("%s, %v", data.String(), err)
	}
	if Failed(results) || !Failed(append(results, Check{Status: Fail})) {
		t.Error("warnings count as failures, or failures do not")
	}
}

func TestKernelAtLeast(t *testing.T) {
	t.Parallel()
	for release, want := range map[string]bool{"6.1.0-41-amd64": true, "5.14": true, "5.13.9": false, "4.19.0": false, "10.0-rc1": true, "": false, "x.y": false} {
		if got := kernelAtLeast(release, 5, 14); got != want {
			t.Errorf("%q: %v", release, got)
		}
	}
}

func TestMeminfo(t *testing.T) {
	t.Parallel()
	text := "MemTotal:       24683652 kB\nMemAvailable:          7 kB\nBroken: x\n"
	if meminfo(text, "MemTotal") != 24683652<<10 || meminfo(text, "MemAvailable") != 7<<10 || meminfo(text, "Broken") != 0 || meminfo(text, "No") != 0 {
		t.Error("wrong values")
	}
}

func TestExisting(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for path, want := range map[string]string{dir: dir, dir + "/a/b": dir, "/": "/", "/nonexistent-x/y": "/"} {
		if got := existing(path); got != want {
			t.Errorf("%s: %s", path, got)
		}
	}
}
