package gateway

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"connectrpc.com/connect"

	gatewayv1 "github.com/space-sandbox/space/api/proto/gateway/v1"
	apiv1 "github.com/space-sandbox/space/api/v1"
)

func filesPath(b *box, query ...string) string {
	q := url.Values{}
	for i := 0; i < len(query); i += 2 {
		q.Set(query[i], query[i+1])
	}
	return "/raw/sandboxes/" + b.route.SandboxId + "/files?" + q.Encode()
}

func TestFilesThere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.boot(w.newBox())
	w.configure(b)
	content := make([]byte, 5<<20+17)
	rnd := rand.NewChaCha8([32]byte{1})
	if _, err := rnd.Read(content); err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(w.dir, "new", "file")
	status, body, _ := w.raw("PUT", filesPath(b, "path", target, "create_parents", "true", "mode", "0640"), bytes.NewReader(content))
	var stored apiv1.WrittenFile
	sum := sha256.Sum256(content)
	if err := json.Unmarshal(body, &stored); err != nil || status != 200 || stored.SizeBytes != int64(len(content)) ||
		stored.SHA256 != hex.EncodeToString(sum[:]) {
		t.Fatalf("put: %d %s", status, body)
	}
	if info, err := os.Stat(target); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("stat: %v, %v", info, err)
	}
	status, body, res := w.raw("GET", filesPath(b, "path", target), nil)
	if status != 200 || !bytes.Equal(body, content) || res.ContentLength != int64(len(content)) {
		t.Errorf("get: %d, %d bytes of %d", status, len(body), res.ContentLength)
	}
	status, body, res = w.raw("HEAD", filesPath(b, "path", target), nil)
	if status != 200 || len(body) != 0 || res.ContentLength != int64(len(content)) {
		t.Errorf("head: %d, %d bytes, length %d", status, len(body), res.ContentLength)
	}
}

// TestRawErrors: what the agent refuses, and what the gateway does, comes out in the problem form with its status.
func TestRawErrors(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.boot(w.newBox())
	full := w.newBox()
	w.serve(full, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		rw.Header().Set("Content-Type", "application/json")
		rw.WriteHeader(507)
		fmt.Fprint(rw, `{"code":"guest_disk_full","message":"the disk is full"}`)
	}))
	liar := w.newBox()
	w.serve(liar, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		fmt.Fprint(rw, `{"path":"/x","size_bytes":1,"sha256":"`+hex.EncodeToString(make([]byte, 32))+`"}`)
	}))
	w.configure(b, full, liar)
	for name, row := range map[string]struct {
		method, path string
		status       int
		code         string
	}{
		"missing file":     {"GET", filesPath(b, "path", "/no/such/file"), 404, "not_found"},
		"missing parent":   {"PUT", filesPath(b, "path", "/no/such/file"), 404, "not_found"},
		"directory":        {"GET", filesPath(b, "path", w.dir), 409, "is_directory"},
		"onto a directory": {"PUT", filesPath(b, "path", w.dir), 409, "is_directory"},
		"full disk":        {"PUT", filesPath(full, "path", "/x"), 507, "guest_disk_full"},
		"other size":       {"PUT", filesPath(liar, "path", "/x"), 502, "guest_fault"},
		"unknown user":     {"GET", filesPath(b, "path", "/x", "user", "nobody-here"), 404, "not_found"},
		"parameter":        {"GET", filesPath(b, "path", "/x", "mode", "0644"), 400, "invalid_argument"},
		"method":           {"POST", filesPath(b, "path", "/x"), 405, "method_not_allowed"},
		"no sandbox":       {"GET", "/raw/sandboxes/aaaaaaaaaaaaaaaaaaaa/files?path=/x", 404, "not_found"},
		"no route":         {"GET", "/raw/sandboxes/" + b.route.SandboxId + "/else", 404, "not_found"},
	} {
		var body io.Reader
		if row.method == "PUT" {
			body = bytes.NewReader([]byte("12345"))
		}
		status, data, res := w.raw(row.method, row.path, body)
		var form apiv1.Problem
		if err := json.Unmarshal(data, &form); err != nil || res.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: %d %q, %v", name, status, data, err)
		}
		if status != row.status || form.Code != row.code {
			t.Errorf("%s: %d %s, want %d %s", name, status, data, row.status, row.code)
		}
	}
}

func TestRawStdin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.boot(w.newBox())
	w.configure(b)
	c := w.shell(b, "exec sha256sum", true)
	if _, err := w.rpc().StartProcess(t.Context(), connect.NewRequest(&gatewayv1.StartProcessRequest{SandboxId: b.route.SandboxId,
		ProcessId: string(c.proc)})); err != nil {
		t.Fatal(err)
	}
	content := bytes.Repeat([]byte("0123456789abcdef"), 40000) // more than a chunk
	half := len(content) / 2
	for i, row := range []struct {
		query  string
		body   []byte
		status int
		bytes  int
	}{
		{"", content[:half], 200, half},
		{"?offset=0", content[half:], 409, half},
		{fmt.Sprintf("?offset=%d&eof=true", half), content[half:], 200, len(content)},
		{"?eof=yes", nil, 400, 0},
		{"?since=1", nil, 400, 0},
		{"", []byte("late"), 409, 0},
	} {
		status, data, _ := w.raw("POST", "/raw/sandboxes/"+b.route.SandboxId+"/processes/"+string(c.proc)+"/stdin"+row.query, bytes.NewReader(row.body))
		var answer struct {
			StdinBytes int `json:"stdin_bytes"`
		}
		if err := json.Unmarshal(data, &answer); err != nil || status != row.status || answer.StdinBytes != row.bytes {
			t.Errorf("step %d: %d %s, want %d and %d bytes", i, status, data, row.status, row.bytes)
		}
	}
	ws := c.attach("")
	sum := sha256.Sum256(content)
	if closed := ws.rest(); closed.Code != 4000 || ws.out[1].String() != hex.EncodeToString(sum[:])+"  -\n" {
		t.Errorf("closed with %v, stdout %q", closed, &ws.out[1])
	}
}
