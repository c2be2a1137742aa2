//go:build realvm

package e2e

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
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
		"lease":            {body: `{"template":"mini","lease":{"ttl_seconds":5}}`, status: 400, code: "unknown_field", field: "lease"},
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

// TestMissingKernel removes the guest's kernel: node says what is missing and what to do, and setup mends it.
func TestMissingKernel(t *testing.T) {
	t.Parallel()
	i := install(t)
	for _, kernel := range glob(t, filepath.Join(i.dir, "node", "guest", "vmlinux*")) {
		if err := os.Remove(kernel); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(i.bin, "space"), "up", "--data-dir", i.dir, "--listen", "127.0.0.1:0", "--data-listen", "127.0.0.1:0")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := ""
	buf := make([]byte, 4096)
	for !strings.Contains(said, "space setup") {
		n, err := stderr.Read(buf)
		said += string(buf[:n])
		if err != nil {
			t.Fatalf("space up ended without naming the remedy:\n%s", said)
		}
	}
	cancel()
	io.Copy(io.Discard, stderr)
	cmd.Wait()
	if out, err := i.space(t.Context(), "setup", "--no-install", "--templates", "mini", "--assets", environment(t, "SPACE_TEST_ASSETS")); err != nil {
		t.Fatalf("setup after the loss: %v\n%s", err, out)
	}
	i.start()
	if out, err := i.space(t.Context(), "ls"); err != nil {
		t.Errorf("ls: %v\n%s", err, out)
	}
}
