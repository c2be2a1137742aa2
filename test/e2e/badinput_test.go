//go:build realvm

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/datadir"
)

// TestBadInput sends what must be refused at once and checks that nothing came of it.
func TestBadInput(t *testing.T) {
	t.Parallel()
	i := install(t)
	i.start()
	before := i.possessions()
	for name, tc := range map[string]struct {
		key, body string
		status    int
		code      string
		field     string
	}{
		"unknown template": {body: `{"template":"nope"}`, status: 404, code: "template_not_found", field: "template"},
		"no vcpus":         {body: `{"template":"mini","vcpus":0}`, status: 400, code: "invalid_argument", field: "vcpus"},
		"10000 vcpus":      {body: `{"template":"mini","vcpus":10000}`, status: 400, code: "invalid_argument", field: "vcpus"},
		"policy":           {body: `{"template":"mini","policy":{"allow":["example.com"]}}`, status: 400, code: "unknown_field", field: "policy"},
		"lease":            {body: `{"template":"mini","lease":{"ttl_seconds":0}}`, status: 400, code: "invalid_argument", field: "lease.ttl_seconds"},
		"2 MiB of JSON":    {body: `{"template":"mini","name":"` + strings.Repeat("x", 2<<20) + `"}`, status: 413, code: "body_too_large"},
		"invalid UTF-8":    {body: "{\"template\":\"mi\xffni\"}", status: 400, code: "malformed_body"},
		"not JSON":         {body: `{"template"`, status: 400, code: "malformed_body"},
		"wrong type":       {body: `{"template":7}`, status: 400, code: "invalid_argument", field: "template"},
		"name like an id":  {body: `{"template":"mini","name":"abcdefghij0123456789"}`, status: 400, code: "invalid_argument", field: "name"},
		"wrong key":        {key: "e2b_" + strings.Repeat("0", 40), body: `{"template":"mini"}`, status: 401, code: "unauthenticated"},
		"too small a disk": {body: `{"template":"mini","disk_mib":1}`, status: 400, code: "invalid_argument", field: "disk_mib"},
		"driver not here":  {body: `{"template":"mini","driver":"fake"}`, status: 400, code: "invalid_argument", field: "driver"},
	} {
		key := tc.key
		if key == "" {
			key = i.client.Key
		}
		got := i.post("/v1/sandboxes", key, tc.body)
		if got.Status != tc.status || got.Code != tc.code {
			t.Errorf("%s: %d %s (%s), want %d %s", name, got.Status, got.Code, got.Message, tc.status, tc.code)
		}
		if got.Message == "" || len(got.Fields) > 0 && got.Fields[0].Field != tc.field || tc.field != "" && len(got.Fields) == 0 {
			t.Errorf("%s: message %q, fields %+v, want field %q", name, got.Message, got.Fields, tc.field)
		}
	}
	if d := cmp.Diff(before, i.possessions()); d != "" {
		t.Errorf("refused requests left something (-before +after):\n%s", d)
	}
}

type problem struct {
	Status  int    `json:"status"`
	Code    string `json:"code"`
	Message string `json:"message"`
	Fields  []struct {
		Field string `json:"field"`
	} `json:"fields"`
}

func (i *installation) post(path, key, body string) problem {
	i.t.Helper()
	req, err := http.NewRequestWithContext(i.t.Context(), http.MethodPost, i.url+path, strings.NewReader(body))
	if err != nil {
		i.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Content-Type", "application/json")
	res, err := (&http.Client{}).Do(req)
	if err != nil {
		i.t.Fatal(err)
	}
	defer res.Body.Close()
	var p problem
	data, err := io.ReadAll(res.Body)
	if err != nil {
		i.t.Fatal(err)
	}
	if err := json.Unmarshal(data, &p); err != nil || p.Status != res.StatusCode || res.Header.Get("Content-Type") != "application/problem+json" {
		i.t.Errorf("answer %d is not in the error form: %q", res.StatusCode, data)
	}
	return p
}

// TestCommandLineFaults uses the CLI as a stranger would: every fault is one line with a cause and a remedy.
func TestCommandLineFaults(t *testing.T) {
	t.Parallel()
	i := install(t)
	i.start()
	check := func(name, out string, err error, words ...string) {
		t.Helper()
		if err == nil {
			t.Errorf("%s: succeeded: %s", name, out)
		}
		for _, w := range append(words, "space: ", "—") {
			if !strings.Contains(out, w) {
				t.Errorf("%s: %q does not say %q", name, out, w)
			}
		}
	}
	out, err := i.space(t.Context(), "up", "--listen", "127.0.0.1:0", "--data-listen", "127.0.0.1:0")
	check("a second up", out, err, "another space up", "pid")
	out, err = i.space(t.Context(), "up", "--listen", "0.0.0.0:7070")
	check("an open address", out, err, "space up")
	out, err = i.asNobody("up")
	check("up without privileges", out, err, "root")
	out, err = i.space(t.Context(), "exec", "nobody-of-this-name", "--", "true")
	check("no such sandbox", out, err, "no such")
	out, err = i.space(t.Context(), "create", "--template", "nope")
	check("no such template", out, err, "nope")
}

// asNobody runs the CLI as another user.
func (i *installation) asNobody(args ...string) (string, error) {
	cmd := exec.CommandContext(i.t.Context(), "/proc/self/fd/3", append([]string{"--data-dir", i.dir}, args...)...)
	binary, err := os.Open(filepath.Join(i.bin, "space"))
	if err != nil {
		i.t.Fatal(err)
	}
	defer binary.Close()
	cmd.ExtraFiles = []*os.File{binary} // the checkout may be closed to other users
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// upEnds runs space up where it cannot start: it must end by itself, soon, and say why.
func (i *installation) upEnds() string {
	i.t.Helper()
	ctx, cancel := context.WithTimeout(i.t.Context(), readyTimeout)
	defer cancel()
	out, err := i.space(ctx, "up", "--listen", "127.0.0.1:0", "--data-listen", "127.0.0.1:0")
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 {
		i.t.Errorf("space up: %v, want exit code 1\n%s", err, out)
	}
	return out
}

// setup runs space setup once more.
func (i *installation) setup() {
	i.t.Helper()
	if out, err := i.space(i.t.Context(), "setup", "--no-install", "--templates", "mini", "--assets", environment(i.t, "SPACE_TEST_ASSETS")); err != nil {
		i.t.Fatalf("setup: %v\n%s", err, out)
	}
}

// TestMissingKernel removes the guest's kernel: space up says what is missing and what to do, and setup mends it.
func TestMissingKernel(t *testing.T) {
	t.Parallel()
	i := install(t)
	kernels := glob(t, filepath.Join(i.dir, "node", "guest", "vmlinux*"))
	if len(kernels) != 1 {
		t.Fatalf("kernels: %v", kernels)
	}
	if err := os.Remove(kernels[0]); err != nil {
		t.Fatal(err)
	}
	out := i.upEnds()
	if strings.Count(out, filepath.Base(kernels[0])) != 1 || !strings.Contains(out, "space setup --data-dir "+i.dir) {
		t.Errorf("not said once, with its remedy:\n%s", out)
	}
	i.setup()
	i.start()
	if out, err := i.space(t.Context(), "ls"); err != nil {
		t.Errorf("ls: %v\n%s", err, out)
	}
}

// TestDamagedStore overwrites the record: space up refuses it, leaves it alone, and starts once it is moved away.
func TestDamagedStore(t *testing.T) {
	t.Parallel()
	i := install(t)
	store := filepath.Join(i.dir, "control", "space.db")
	info, err := os.Stat(filepath.Dir(store))
	if err != nil {
		t.Fatal(err)
	}
	owner := info.Sys().(*syscall.Stat_t)
	text := strings.Repeat("this is no database\n", 1000)
	if err := errors.Join(os.WriteFile(store, []byte(text), 0o600), os.Chown(store, int(owner.Uid), int(owner.Gid))); err != nil {
		t.Fatal(err)
	}
	if out := i.upEnds(); strings.Count(out, "the store is damaged") != 1 || !strings.Contains(out, "restore a backup") {
		t.Errorf("not said once, with its remedy:\n%s", out)
	}
	if data, err := os.ReadFile(store); err != nil || string(data) != text {
		t.Errorf("the damaged store was changed (%v)", err)
	}
	if err := os.Chown(store, 0, 0); err != nil {
		t.Fatal(err)
	}
	if out := i.upEnds(); !strings.Contains(out, "chown -R") {
		t.Errorf("a store that control may not open:\n%s", out)
	}
	if err := os.Remove(store); err != nil {
		t.Fatal(err)
	}
	i.start()
}

// TestRemovedDataDirectory removes the data directory under a running installation with a sandbox: down --all still
// removes everything, by what the host and the kernel remember.
func TestRemovedDataDirectory(t *testing.T) {
	t.Parallel()
	i := install(t)
	i.start()
	i.create(apiv1.CreateSandbox{})
	was := i.record()
	for _, name := range []string{"installation.json", "control", "node", "up.lock", "pool.img"} {
		if err := os.RemoveAll(filepath.Join(i.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := i.space(t.Context(), "down"); err == nil || !strings.Contains(out, "space setup") {
		t.Errorf("down without an installation: %v\n%s", err, out)
	}
	if out, err := i.space(t.Context(), "setup", "--no-install", "--templates", "mini", "--pool-sparse", "--assets", environment(t, "SPACE_TEST_ASSETS")); err == nil || !strings.Contains(out, "space down --all") {
		t.Errorf("setup over a pool in use: %v\n%s", err, out)
	}
	for range 2 {
		if out, err := i.space(t.Context(), "down", "--all"); err != nil {
			t.Errorf("down --all: %v\n%s", err, out)
		}
	}
	<-i.ended
	i.nothingRuns(was)
}

// nothingRuns looks for what an installation had beside its data directory.
func (i *installation) nothingRuns(was datadir.Installation) {
	i.t.Helper()
	for _, pid := range pids(i.t) {
		line, lineErr := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		info, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
		if err != nil || lineErr != nil || len(line) == 0 { // a dead process that init has not reaped yet has no arguments
			continue
		}
		if uid := info.Sys().(*syscall.Stat_t).Uid; uid >= was.UIDBase && uid-was.UIDBase < was.UIDCount {
			i.t.Errorf("process %d of uid %d is left", pid, uid)
		}
	}
	left := glob(i.t, "/run/netns/space-"+was.ID+"-*")
	left = append(left, glob(i.t, "/run/space/"+was.ID)...)
	left = append(left, glob(i.t, "/sys/fs/cgroup/*/space-"+was.ID)...)
	left = append(left, glob(i.t, "/sys/fs/cgroup/space-"+was.ID)...)
	left = append(left, linesWith(i.t, "/proc/self/mounts", i.dir)...)
	left = append(left, loops(i.t, i.dir)...)
	if len(left) != 0 {
		i.t.Errorf("left: %q", left)
	}
}
