package control_test

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/sandbox"
)

// front serves control's proxies as httpapi does.
func front(t *testing.T, w *world, ref string, id sandbox.CommandID) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/files", func(rw http.ResponseWriter, r *http.Request) { w.c.ProxyFiles(rw, r, ref, "") })
	mux.HandleFunc("/files/{action}", func(rw http.ResponseWriter, r *http.Request) { w.c.ProxyFiles(rw, r, ref, r.PathValue("action")) })
	mux.HandleFunc("/stdin", func(rw http.ResponseWriter, r *http.Request) { w.c.ProxyStdin(rw, r, id) })
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return srv
}

func do(t *testing.T, method, url, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := new(http.Client).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var buf bytes.Buffer
	if _, err := buf.ReadFrom(res.Body); err != nil {
		t.Fatal(err)
	}
	return res, buf.String()
}

func TestProxy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	box := w.running(sandbox.Spec{Template: "base"})
	made, err := w.c.CreateCommand(t.Context(), w.call(), string(box.ID), sandbox.CommandSpec{Argv: []string{"cat"}, Stdin: true}, true)
	if err != nil {
		t.Fatal(err)
	}
	srv := front(t, w, string(box.ID), made.Command.ID)
	res, body := do(t, http.MethodPut, srv.URL+"/files?path="+url.QueryEscape("a b&user=root/../c")+"&mode=0644", "content",
		"Authorization", "Bearer e2b_secret", "X-Evil", "1", "Content-Type", "text/plain")
	if res.StatusCode != 200 || body != "content" || res.Header.Get("X-Internal") != "" {
		t.Errorf("%d %q %v", res.StatusCode, body, res.Header)
	}
	w.gw.mu.Lock()
	got := w.gw.requests[0]
	w.gw.mu.Unlock()
	q := got.URL.Query()
	if got.URL.Path != "/raw/sandboxes/"+string(box.ID)+"/files" || q.Get("path") != "a b&user=root/../c" || q.Get("user") != "user" ||
		q.Get("mode") != "0644" || len(q) != 3 {
		t.Errorf("the gateway got %s", got.URL)
	}
	for _, h := range []string{"Authorization", "X-Evil", "X-Forwarded-For", "User-Agent"} {
		if got.Header.Get(h) != "" {
			t.Errorf("the gateway got %s: %s", h, got.Header.Get(h))
		}
	}
	if res, body := do(t, http.MethodGet, srv.URL+"/files?path=missing", ""); res.StatusCode != 404 || !strings.Contains(body, `"not_found"`) {
		t.Errorf("an error of the gateway: %d %s", res.StatusCode, body)
	}
	if res, body := do(t, http.MethodHead, srv.URL+"/files?path=x", ""); res.StatusCode != 200 || body != "" {
		t.Errorf("head: %d %q", res.StatusCode, body)
	}
	res, body = do(t, http.MethodPost, srv.URL+"/stdin?offset=0&eof=true", "input")
	if res.StatusCode != 200 || body != "input" {
		t.Errorf("stdin: %d %q", res.StatusCode, body)
	}
	for _, bad := range []string{"/files?path=x&paht=y", "/files?path=x&path=y", "/files?path=x&mode=0644", "/files", "/files?path=x&user=%zz",
		"/stdin?offset=-1", "/stdin?eof=yes", "/stdin?x=y"} {
		method := http.MethodGet
		if strings.HasPrefix(bad, "/stdin") {
			method = http.MethodPost
		}
		if res, body := do(t, method, srv.URL+bad, ""); res.StatusCode != 400 || !strings.Contains(body, `"invalid_argument"`) {
			t.Errorf("%s: %d %s", bad, res.StatusCode, body)
		}
	}
	for _, route := range []struct{ method, path, target string }{
		{"DELETE", "/files?path=x&recursive=true&missing_ok=true", ""}, {"GET", "/files/stat?path=x&follow=true", "/stat"},
		{"GET", "/files/list?path=x&depth=2&limit=3&cursor=a", "/list"}, {"POST", "/files/mkdir?path=x&mode=1&create_parents=true", "/mkdir"},
		{"POST", "/files/move?path=x&to=y&overwrite=true", "/move"}, {"GET", "/files/watch?path=x&recursive=true", "/watch"},
		{"GET", "/files/archive?path=x", "/archive"}, {"PUT", "/files/archive?path=x&create_parents=true", "/archive"},
		{"PUT", "/files?path=x&if_match=a&write=in_place", ""},
	} {
		if res, body := do(t, route.method, srv.URL+route.path, "", "Range", "bytes=0-1", "Last-Event-ID", "5"); res.StatusCode != 200 {
			t.Errorf("%s: %d %s", route.path, res.StatusCode, body)
			continue
		}
		w.gw.mu.Lock()
		got := w.gw.requests[len(w.gw.requests)-1]
		w.gw.mu.Unlock()
		sent, _ := url.Parse(route.path)
		want := sent.Query()
		want.Set("user", "user")
		if got.Method != route.method || got.URL.Path != "/raw/sandboxes/"+string(box.ID)+"/files"+route.target || got.URL.RawQuery != want.Encode() ||
			got.Header.Get("Range") != "bytes=0-1" || got.Header.Get("Last-Event-ID") != "5" {
			t.Errorf("%s: the gateway got %s %s, %v", route.path, got.Method, got.URL, got.Header)
		}
	}
	for _, bad := range []string{"/files/copy?path=x", "/files/mkdir?path=x", "/files/?path=x"} {
		if res, _ := do(t, http.MethodGet, srv.URL+bad, ""); res.StatusCode != 405 && res.StatusCode != 404 {
			t.Errorf("%s: %d", bad, res.StatusCode)
		}
	}
	w.stopGateway()
	if res, body := do(t, http.MethodGet, srv.URL+"/files?path=x", ""); res.StatusCode != 503 || !strings.Contains(body, `"unavailable"`) {
		t.Errorf("without a gateway: %d %s", res.StatusCode, body)
	}
	w.startGateway()
}

func TestProxyStates(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	box := w.running(sandbox.Spec{})
	started := w.started(box.ID)
	srv := front(t, w, string(box.ID), started.ID)
	if res, body := do(t, http.MethodPost, srv.URL+"/stdin", "x"); res.StatusCode != 409 || !strings.Contains(body, "stdin_closed") {
		t.Errorf("no stdin: %d %s", res.StatusCode, body)
	}
	w.node.exit(string(box.ID), sandbox.ReasonOOM, "")
	w.eventually("it failed", func() bool { return w.box(box.ID).State == sandbox.StateFailed })
	if res, body := do(t, http.MethodGet, srv.URL+"/files?path=x", ""); res.StatusCode != 409 || !strings.Contains(body, "invalid_state") {
		t.Errorf("failed sandbox: %d %s", res.StatusCode, body)
	}
	w.deleted(box.ID)
	if res, _ := do(t, http.MethodGet, srv.URL+"/files?path=x", ""); res.StatusCode != 404 {
		t.Errorf("deleted sandbox: %d", res.StatusCode)
	}
}

func TestAdminKeyIsImported(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	key := auth.NewKey()
	path := filepath.Join(t.TempDir(), "admin.hash")
	if err := os.WriteFile(path, []byte(auth.Hash(key).String()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var first auth.Principal
	for range 2 { // the second start finds it
		c, err := control.New(t.Context(), control.Deps{Store: w.store, Signer: w.signer, Logger: discard(), AdminHashFile: path})
		if err != nil {
			t.Fatal(err)
		}
		p, err := c.Authenticate(t.Context(), string(key))
		if err != nil || p.Role != auth.RoleAdmin || p.KeyID == "" || first.KeyID != "" && p != first {
			t.Errorf("%+v %v", p, err)
		}
		first = p
		_, err = c.Authenticate(t.Context(), string(auth.NewKey()))
		wantCode(t, err, sandbox.CodeUnauthenticated)
		_, err = c.Authenticate(t.Context(), "nonsense")
		wantCode(t, err, sandbox.CodeUnauthenticated)
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(path, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := control.New(t.Context(), control.Deps{Store: w.store, Signer: w.signer, Logger: discard(), AdminHashFile: path})
	wantCode(t, err, sandbox.CodeHostSetup)
}

func TestNodeAndMetrics(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.running(sandbox.Spec{})
	info, err := w.c.Node(t.Context())
	if err != nil || info.Sandboxes != 1 || info.DefaultDriver != "qemu" || len(info.Drivers) != 3 || info.PoolKind != "copy" {
		t.Errorf("%+v %v", info, err)
	}
	for _, want := range []string{`space_sandboxes{state="running"} 1`, `space_link_up{to="node"} 1`,
		`space_operation_seconds_count{kind="create",state="succeeded"} 1`, `space_store_commits_total`} {
		w.eventually("metrics have "+want, func() bool {
			var buf bytes.Buffer
			return w.c.Metrics(t.Context(), &buf) == nil && strings.Contains(buf.String(), want)
		})
	}
}
