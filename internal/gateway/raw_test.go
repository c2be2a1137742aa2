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
	"strings"
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

// actPath is the path of a route below files.
func actPath(b *box, action string, query ...string) string {
	return strings.Replace(filesPath(b, query...), "/files?", "/files/"+action+"?", 1)
}

// TestFileRoutes goes through all routes for files but the plain ones, with a real agent.
func TestFileRoutes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.boot(w.newBox())
	w.configure(b)
	dir := filepath.Join(w.dir, "tree")
	for _, row := range []struct {
		method, path string
		status       int
		contains     string
	}{
		{"POST", actPath(b, "mkdir", "path", dir, "mode", "0750"), 200, `"mode":"0750"`},
		{"PUT", filesPath(b, "path", dir+"/a"), 200, "sha256"},
		{"PUT", filesPath(b, "path", dir+"/a", "if_match", hex.EncodeToString(make([]byte, 32))), 412, "content_mismatch"},
		{"PUT", filesPath(b, "path", dir+"/a", "write", "in_place"), 200, "sha256"},
		{"GET", actPath(b, "stat", "path", dir+"/a"), 200, `"size_bytes":5`},
		{"POST", actPath(b, "move", "path", dir+"/a", "to", dir+"/b"), 200, dir + "/b"},
		{"GET", actPath(b, "list", "path", dir, "limit", "1"), 200, `"items":[{"path":"` + dir + `/b"`},
		{"GET", actPath(b, "archive", "path", dir), 200, "ustar"},
		{"PUT", actPath(b, "archive", "path", dir), 400, "not a tar archive"},
		{"DELETE", filesPath(b, "path", dir), 409, "directory_not_empty"},
		{"DELETE", filesPath(b, "path", dir, "recursive", "true"), 204, ""},
		{"DELETE", filesPath(b, "path", dir, "missing_ok", "true"), 204, ""},
		{"GET", actPath(b, "watch", "path", dir), 404, "not_found"},
		{"GET", actPath(b, "mkdir", "path", dir), 405, "method_not_allowed"},
		{"GET", actPath(b, "copy", "path", dir), 404, "not_found"},
		{"GET", actPath(b, "", "path", dir), 404, "not_found"},
		{"GET", actPath(b, "stat", "path", dir, "mode", "1"), 400, "invalid_argument"},
	} {
		var body io.Reader
		if row.method == "PUT" {
			body = strings.NewReader("12345")
		}
		status, data, _ := w.raw(row.method, row.path, body)
		if status != row.status || !strings.Contains(string(data), row.contains) {
			t.Errorf("%s %s: %d %s, want %d with %s", row.method, row.path, status, data, row.status, row.contains)
		}
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
