package guest_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/guest"
	"github.com/space-sandbox/space/internal/sandbox"
)

// TestTrees goes through everything but whole files, with the real agent.
func TestTrees(t *testing.T) {
	t.Parallel()
	c, _ := pair(t)
	ctx, dir := t.Context(), t.TempDir()
	at := func(p string) url.Values { return url.Values{"path": {filepath.Join(dir, p)}} }
	info, err := c.MakeDirectory(ctx, at("d"))
	if err != nil || info.Type != apiv1.FileTypeDirectory || info.Path != dir+"/d" {
		t.Fatalf("%+v, %v", info, err)
	}
	_, err = c.MakeDirectory(ctx, at("d"))
	wantCode(t, err, sandbox.CodeAlreadyExists)
	if err := os.WriteFile(dir+"/d/\xffname", []byte("0123456789"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir+"/d/\xffname", dir+"/d/file"); err != nil {
		t.Fatal(err)
	}
	f, err := c.GetFile(ctx, at("d/file"), "bytes=2-4")
	if err != nil || f.Size != 3 || f.Part == nil || *f.Part != (guest.Part{First: 2, Last: 4, Total: 10}) {
		t.Fatalf("%+v, %v", f, err)
	}
	if got, err := io.ReadAll(f.Body); err != nil || string(got) != "234" {
		t.Errorf("%q, %v", got, err)
	}
	f.Body.Close()
	_, err = c.GetFile(ctx, at("d/file"), "bytes=10-")
	wantCode(t, err, sandbox.CodeRange)
	page, err := c.ListFiles(ctx, at("d"))
	if err != nil || len(page.Items) != 1 || page.Items[0].Path != dir+"/d/file" || page.Items[0].XAttrs == nil {
		t.Errorf("%+v, %v", page, err)
	}
	archive, err := c.GetArchive(ctx, at("d"))
	if err != nil {
		t.Fatal(err)
	}
	packed, err := io.ReadAll(archive.Body)
	archive.Body.Close()
	if err != nil {
		t.Fatal(err)
	}
	if done, err := c.PutArchive(ctx, url.Values{"path": {dir + "/e"}, "create_parents": {"true"}}, bytes.NewReader(packed), -1); err != nil || done.Entries != 2 || done.SizeBytes != 10 {
		t.Errorf("%+v, %v", done, err)
	}
	if info, err = c.MoveFile(ctx, url.Values{"path": {dir + "/e/file"}, "to": {dir + "/g"}}); err != nil || info.SizeBytes != 10 {
		t.Errorf("%+v, %v", info, err)
	}
	if info, err = c.StatFile(ctx, at("g")); err != nil || info.Path != dir+"/g" {
		t.Errorf("%+v, %v", info, err)
	}
	wantCode(t, c.DeleteFile(ctx, at("d")), sandbox.CodeNotEmpty)
	if err := c.DeleteFile(ctx, url.Values{"path": {dir + "/d"}, "recursive": {"true"}}); err != nil {
		t.Error(err)
	}
	_, err = c.PutArchive(ctx, at("e"), io.MultiReader(bytes.NewReader(packed[:600]), failing{}), -1)
	wantCode(t, err, sandbox.CodeInvalidArgument)
}

// TestWatchEndsWithItsCaller.
func TestWatchEndsWithItsCaller(t *testing.T) {
	t.Parallel()
	c, _ := pair(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	dir := t.TempDir()
	w, err := c.WatchFiles(ctx, url.Values{"path": {dir}}, true)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Body.Close()
	if err := os.WriteFile(dir+"/new", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	var seen []byte
	for buf := make([]byte, 1024); !strings.Contains(string(seen), "event: create\ndata: {\"type\":\"create\",\"path\":\""+dir+"/new\""); {
		n, err := w.Body.Read(buf)
		if err != nil {
			t.Fatalf("%v after %s", err, seen)
		}
		seen = append(seen, buf[:n]...)
	}
	if !strings.Contains(string(seen), "id: 1\nevent: overflow\n") {
		t.Errorf("no overflow first: %s", seen)
	}
	cancel()
	_, err = io.Copy(io.Discard, w.Body)
	wantCode(t, err, sandbox.CodeCanceled)
}

// answering is an agent that answers everything alike.
func answering(t *testing.T, status int, head map[string]string, body string) *guest.Client {
	t.Helper()
	return serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for k, v := range head {
			w.Header().Set(k, v)
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
}

// TestLyingParts: a part must be one that can be, of the length it says.
func TestLyingParts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		span, part, body string
		good             bool
	}{
		"good":           {"bytes=0-3", "bytes 0-3/9", "0123", true},
		"not asked":      {"", "bytes 0-3/9", "0123", false},
		"no part":        {"bytes=0-3", "", "0123", false},
		"other length":   {"bytes=0-3", "bytes 0-8/9", "0123", false},
		"behind the end": {"bytes=0-3", "bytes 6-9/9", "0123", false},
		"backwards":      {"bytes=0-3", "bytes 3-0/9", "0123", false},
		"overflow":       {"bytes=0-3", "bytes 0-9999999999999999999/9", "0123", false},
		"unknown size":   {"bytes=0-3", "bytes 0-3/*", "0123", false},
		"two lines":      {"bytes=0-3", "bytes 0-3/9, x", "0123", false},
	} {
		f, err := answering(t, 206, map[string]string{"Content-Range": c.part}, c.body).GetFile(t.Context(), url.Values{"path": {"/x"}}, c.span)
		if (err == nil) != c.good || err != nil && sandbox.CodeOf(err) != sandbox.CodeGuestFault {
			t.Errorf("%s: %+v, %v", name, f, err)
		}
		if err == nil {
			f.Body.Close()
		}
	}
	_, err := answering(t, 204, nil, "").GetFile(t.Context(), url.Values{"path": {"/x"}}, "")
	wantCode(t, err, sandbox.CodeGuestFault)
}

// infoWith is a good entry with one thing changed.
func infoWith(key string, value any) map[string]any {
	m := map[string]any{"path": "/x", "type": "file", "size_bytes": 1, "mode": "0644", "uid": 1, "gid": 1, "owner": "me",
		"modified_at": "2026-01-02T03:04:05Z", "symlink_target": nil, "xattrs": map[string]string{}, "unknown": "dropped"}
	if key != "" {
		m[key] = value
	}
	return m
}

// TestLyingInfo: what cannot be is a fault, alone and in a list.
func TestLyingInfo(t *testing.T) {
	t.Parallel()
	many := map[string]string{}
	for n := range 5000 {
		many[fmt.Sprint("user.", n)] = ""
	}
	for name, c := range map[string]struct {
		key   string
		value any
		good  bool
	}{
		"good":             {"", nil, true},
		"control bytes":    {"path", "/\x1b[31m", true}, // JSON is safe; terminals are the CLI's to guard
		"relative":         {"path", "x", false},
		"no path":          {"path", "", false},
		"long path":        {"path", strings.Repeat("/x", 20_000), false},
		"NUL":              {"path", "/\x00", false},
		"type":             {"type", "door", false},
		"negative":         {"size_bytes", -1, false},
		"mode":             {"mode", "rwx", false},
		"long mode":        {"mode", "77777", false},
		"negative uid":     {"uid", -1, false},
		"large uid":        {"uid", 1 << 40, false},
		"no time":          {"modified_at", "yesterday", false},
		"target of a file": {"symlink_target", "/y", false},
		"many attributes":  {"xattrs", many, false},
		"long attribute":   {"xattrs", map[string]string{"user.x": strings.Repeat("x", 70_000)}, false},
		"no base64":        {"xattrs_b64", map[string]string{"user.x": "?"}, false},
		"another type":     {"xattrs", "x", false},
	} {
		raw, err := json.Marshal(infoWith(c.key, c.value))
		if err != nil {
			t.Fatal(err)
		}
		one := answering(t, 200, nil, string(raw))
		info, err := one.StatFile(t.Context(), url.Values{"path": {"/x"}})
		if (err == nil) != c.good || err != nil && sandbox.CodeOf(err) != sandbox.CodeGuestFault {
			t.Errorf("%s: %+v, %v", name, info, err)
		}
		page, err := answering(t, 200, nil, `{"items":[`+string(raw)+`]}`).ListFiles(t.Context(), url.Values{"path": {"/x"}})
		if (err == nil) != c.good || err != nil && sandbox.CodeOf(err) != sandbox.CodeGuestFault {
			t.Errorf("%s in a list: %+v, %v", name, page, err)
		}
	}
	raw, err := json.Marshal(infoWith("", nil))
	if err != nil {
		t.Fatal(err)
	}
	for name, body := range map[string]string{
		"too many": `{"items":[` + strings.Repeat(string(raw)+",", 1000) + string(raw) + `]}`, "too long": strings.Repeat(" ", 5<<20),
		"cursor": `{"items":[],"next_cursor":"a b"}`, "long cursor": `{"items":[],"next_cursor":"` + strings.Repeat("a", 9000) + `"}`, "text": "x", "array": "[]",
	} {
		_, err := answering(t, 200, nil, body).ListFiles(t.Context(), url.Values{"path": {"/x"}})
		if sandbox.CodeOf(err) != sandbox.CodeGuestFault {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, body := range []string{`{"path":"x","entries":1,"size_bytes":1}`, `{"path":"/x","entries":-1,"size_bytes":1}`, "x"} {
		_, err := answering(t, 200, nil, body).PutArchive(t.Context(), url.Values{"path": {"/x"}}, strings.NewReader("x"), 1)
		wantCode(t, err, sandbox.CodeGuestFault)
	}
}

// TestRefusedArchiveSaysWhy: the agent's words reach the caller, cleaned.
func TestRefusedArchiveSaysWhy(t *testing.T) {
	t.Parallel()
	c, _ := pair(t)
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	if err := tw.WriteHeader(&tar.Header{Name: "../x", Typeflag: tar.TypeReg}); err != nil {
		t.Fatal(err)
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := c.PutArchive(t.Context(), url.Values{"path": {t.TempDir()}}, &buf, -1)
	wantCode(t, err, sandbox.CodeInvalidArgument)
	if !strings.Contains(err.Error(), "0 entries with 0 bytes were unpacked before") {
		t.Errorf("%v", err)
	}
}

// TestEarlyRefusal: what the agent says is heard though most of a large body was never read.
func TestEarlyRefusal(t *testing.T) {
	t.Parallel()
	c := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadFull(r.Body, make([]byte, 1000)); err != nil {
			t.Errorf("read: %v", err)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusInsufficientStorage)
		_, _ = w.Write([]byte(`{"code":"guest_disk_full","message":"full"}`)) // the client sees it or fails the test
	}))
	for range 20 {
		body := make([]byte, 8<<20)
		_, err := c.PutFile(t.Context(), url.Values{"path": {"/x"}}, bytes.NewReader(body), int64(len(body)))
		if sandbox.CodeOf(err) != sandbox.CodeGuestDiskFull {
			t.Fatalf("refused early: %v", err)
		}
	}
}
