package httpapi_test

import (
	"context"
	"log/slog"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/httpapi"
	"github.com/space-sandbox/space/internal/httpapi/httpapitest"
	"github.com/space-sandbox/space/internal/sandbox"
)

// tokenFor makes a token; scopes are separated by commas.
func tokenFor(t *testing.T, s *httpapitest.Server, ref, scopes string) string {
	t.Helper()
	body := `{"scopes":["` + strings.ReplaceAll(scopes, ",", `","`) + `"]}`
	return read[apiv1.SandboxToken](t, request(t, s, "POST", "/v1/sandboxes/"+ref+"/tokens", body), 201).Token
}

func command(t *testing.T, s *httpapitest.Server, key, ref string, headers ...string) answer {
	t.Helper()
	return requestAs(t, s, key, "POST", "/v1/sandboxes/"+ref+"/commands", `{"argv":["cat"],"stdin":true}`, headers...)
}

func newCommand(t *testing.T, s *httpapitest.Server, ref string) string {
	t.Helper()
	return read[apiv1.CreatedCommand](t, command(t, s, httpapitest.AdminKey, ref), 201).ID
}

// openToTokens is every route that a sandbox token opens, and the scope it needs; "" is none.
func openToTokens() map[string]string {
	return map[string]string{
		"GET /v1/sandboxes": "", "GET /v1/sandboxes/{id}": "",
		"POST /v1/sandboxes/{id}/commands": "commands", "GET /v1/sandboxes/{id}/commands": "commands", "POST /v1/sandboxes/{id}/exec": "commands",
		"GET /v1/commands/{id}": "commands", "DELETE /v1/commands/{id}": "commands", "POST /v1/commands/{id}/attach": "commands",
		"POST /v1/commands/{id}/signal": "commands", "POST /v1/commands/{id}/resize": "commands",
		"GET /v1/commands/{id}/transcript": "commands", "POST /v1/commands/{id}/stdin": "commands",
		"GET /v1/sandboxes/{id}/files": "files", "PUT /v1/sandboxes/{id}/files": "files", "DELETE /v1/sandboxes/{id}/files": "files",
		"GET /v1/sandboxes/{id}/files/stat": "files", "GET /v1/sandboxes/{id}/files/list": "files", "POST /v1/sandboxes/{id}/files/mkdir": "files",
		"POST /v1/sandboxes/{id}/files/move": "files", "GET /v1/sandboxes/{id}/files/watch": "files", "GET /v1/sandboxes/{id}/files/archive": "files",
		"PUT /v1/sandboxes/{id}/files/archive": "files",
	}
}

// TestTokensOnEveryRoute walks through all routes of the description: what is not deliberately open to tokens is 403,
// whatever the token may do and whatever the request is.
func TestTokensOnEveryRoute(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	box := create(t, s, `{"template":"mini","name":"own"}`)
	made := read[apiv1.Lifecycle](t, request(t, s, "POST", "/v1/sandboxes?wait=10", `{"template":"mini"}`), 200)
	open, needKey := openToTokens(), map[string]bool{}
	for _, route := range specRoutes(t, s) {
		if route.path == "/healthz" || route.path == "/readyz" {
			continue
		}
		scope, isOpen := open[route.String()]
		delete(open, route.String())
		needKey[route.String()] = !isOpen
		for _, scopes := range []string{"commands", "files", "commands,files"} {
			token := tokenFor(t, s, box.ID, scopes)
			id := box.ID
			switch {
			case strings.HasPrefix(route.path, "/v1/commands/"):
				id = newCommand(t, s, box.ID)
			case strings.HasPrefix(route.path, "/v1/operations/"):
				id = made.Operation.ID
			}
			path := strings.NewReplacer("{id}", id, "{ref}", "mini").Replace(route.path)
			for _, method := range []string{route.method, strings.Replace(route.method, "GET", "HEAD", 1)} {
				a := requestAs(t, s, token, method, path, "")
				switch may := isOpen && (scope == "" || strings.Contains(scopes, scope)); {
				case may && (a.StatusCode == 401 || a.StatusCode == 403):
					t.Errorf("%s with %s: %d %s", route, scopes, a.StatusCode, a.body)
				case !may && a.StatusCode != 403:
					t.Errorf("%s with %s: %d %s, want 403", route, scopes, a.StatusCode, a.body)
				case !may && method != "HEAD":
					problem(t, a, 403, "forbidden")
				}
			}
			if !isOpen {
				problem(t, requestAs(t, s, token, route.method, path+"?bad=1", "not even json"), 403, "forbidden")
			}
		}
	}
	if len(open) > 0 {
		t.Errorf("not in the description: %v", open)
	}
	for _, route := range []string{"POST /v1/sandboxes/{id}/tokens", "POST /v1/sandboxes", "DELETE /v1/sandboxes/{id}", "PATCH /v1/sandboxes/{id}", "GET /v1/node",
		"GET /v1/operations", "GET /v1/operations/{id}", "GET /v1/templates", "GET /metrics"} {
		if !needKey[route] {
			t.Errorf("%s was not found closed", route)
		}
	}
	if a := request(t, s, "GET", "/v1/sandboxes/own", ""); a.StatusCode != 200 {
		t.Errorf("the sandbox is %d after all that", a.StatusCode)
	}
}

// TestTokensOfOthers: what belongs to another sandbox looks exactly like what does not exist.
func TestTokensOfOthers(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	box, other := create(t, s, `{"template":"mini","name":"own"}`), create(t, s, `{"template":"mini","name":"other"}`)
	token := tokenFor(t, s, "own", "commands,files")
	its := newCommand(t, s, other.ID)
	for route := range openToTokens() {
		method, path := cut(route)
		named := map[string]string{other.ID: strings.Repeat("a", 20), "other": "nowhere"}
		if strings.HasPrefix(path, "/v1/commands/") {
			named = map[string]string{its: "cmd_" + strings.Repeat("a", 20)}
		} else if path == "/v1/sandboxes" {
			continue
		}
		for there, nowhere := range named {
			is := problem(t, requestAs(t, s, token, method, strings.ReplaceAll(path, "{id}", there), ""), 404, "not_found")
			not := problem(t, requestAs(t, s, token, method, strings.ReplaceAll(path, "{id}", nowhere), ""), 404, "not_found")
			if is.Cause = strings.ReplaceAll(is.Cause, there, nowhere); is.Cause != not.Cause || is.Message != not.Message || is.Remedy != not.Remedy {
				t.Errorf("%s tells them apart: %+v and %+v", route, is, not)
			}
		}
	}
	for _, ref := range []string{"OWN", "own%2F", "..%2Fown", box.ID + "x", "%00", strings.Repeat("a", 300)} {
		problem(t, requestAs(t, s, token, "GET", "/v1/sandboxes/"+ref, ""), 404, "not_found")
	}
	for _, query := range []string{"", "?count=true", "?state=running", "?template=mini:latest", "?created_after=2000-01-01T00:00:00Z"} {
		list := read[apiv1.List[apiv1.Sandbox]](t, requestAs(t, s, token, "GET", "/v1/sandboxes"+query, ""), 200)
		if len(list.Items) != 1 || list.Items[0].ID != box.ID || list.Total != nil && *list.Total != 1 || list.NextCursor != "" {
			t.Errorf("%s: %+v", query, list)
		}
	}
	if a := requestAs(t, s, token, "GET", "/v1/commands/"+its, ""); a.StatusCode != 404 {
		t.Errorf("another one's session: %d", a.StatusCode)
	}
	if c := read[apiv1.Command](t, request(t, s, "GET", "/v1/commands/"+its, ""), 200); c.State != "created" {
		t.Errorf("another one's session is %s", c.State)
	}
}

// TestTokensByName follows the name of the token's own sandbox, and no other.
func TestTokensByName(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	box, other := create(t, s, `{"template":"mini","name":"one"}`), create(t, s, `{"template":"mini"}`)
	token := tokenFor(t, s, "one", "commands")
	for _, ref := range []string{"one", box.ID} {
		if got := read[apiv1.Sandbox](t, requestAs(t, s, token, "GET", "/v1/sandboxes/"+ref, ""), 200); got.ID != box.ID {
			t.Errorf("%s is %s", ref, got.ID)
		}
	}
	request(t, s, "PATCH", "/v1/sandboxes/one", `{"name":"two"}`)
	read[apiv1.Sandbox](t, request(t, s, "PATCH", "/v1/sandboxes/"+other.ID, `{"name":"one"}`), 200)
	problem(t, requestAs(t, s, token, "GET", "/v1/sandboxes/one", ""), 404, "not_found")
	if got := read[apiv1.CreatedCommand](t, command(t, s, token, "two"), 201); got.SandboxID != box.ID {
		t.Errorf("the session is one of %s", got.SandboxID)
	}
}

// moving gives a name to another sandbox right after it was looked up for the first time.
type moving struct {
	*httpapitest.Fake
	once  sync.Once
	first string
	other string
}

func (m *moving) GetSandbox(ctx context.Context, ref string) (sandbox.Sandbox, error) {
	box, err := m.Fake.GetSandbox(ctx, ref)
	m.once.Do(func() {
		none, name := "", box.Name
		_, e1 := m.PatchSandbox(ctx, m.first, control.SandboxPatch{Name: &none})
		_, e2 := m.PatchSandbox(ctx, m.other, control.SandboxPatch{Name: &name})
		if e1 != nil || e2 != nil {
			err = sandbox.Errorf(sandbox.CodeInternal, "%v %v", e1, e2)
		}
	})
	return box, err
}

// TestTokenNameMoves: the gate pins the id, so a name that moves behind it leads nobody elsewhere.
func TestTokenNameMoves(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	box, other := create(t, s, `{"template":"mini","name":"one"}`), create(t, s, `{"template":"mini"}`)
	token := tokenFor(t, s, "one", "commands")
	handler, err := httpapi.New(httpapi.Config{Control: &moving{Fake: s.Fake, first: box.ID, other: other.ID},
		Logger: slog.New(slog.DiscardHandler), DataPlaneURL: s.DataURL})
	if err != nil {
		t.Fatal(err)
	}
	api := httptest.NewServer(handler)
	t.Cleanup(api.Close)
	got := read[apiv1.CreatedCommand](t, command(t, &httpapitest.Server{Fake: s.Fake, URL: api.URL}, token, "one"), 201)
	if got.SandboxID != box.ID {
		t.Errorf("the session is one of %s", got.SandboxID)
	}
	if now := read[apiv1.Sandbox](t, request(t, s, "GET", "/v1/sandboxes/one", ""), 200); now.ID != other.ID {
		t.Fatal("the name has not moved: this test shows nothing")
	}
}

func TestTokenLife(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	create(t, s, `{"template":"mini","name":"box"}`)
	token := tokenFor(t, s, "box", "files")
	if a := requestAs(t, s, "", "GET", "/v1/sandboxes/box", "", "X-API-Key: "+token); a.StatusCode != 200 {
		t.Errorf("as X-API-Key: %d", a.StatusCode)
	}
	last := token[len(token)-10:]
	tampered := strings.TrimSuffix(token, last) + strings.Map(func(r rune) rune { return r ^ 1 }, last)
	attach := read[apiv1.CreatedCommand](t, command(t, s, httpapitest.AdminKey, "box"), 201).Attach.Token
	for name, bad := range map[string]string{"tampered": tampered, "cut": token[:len(token)-1], "prefix": "space_sbx_", "attach": attach,
		"attach with the prefix": "space_sbx_" + attach, "without the prefix": strings.TrimPrefix(token, "space_sbx_")} {
		a := requestAs(t, s, bad, "GET", "/v1/sandboxes/box", "")
		if p := problem(t, a, 401, "unauthenticated"); strings.Contains(p.Cause, bad) && name != "prefix" {
			t.Errorf("%s: the error repeats it: %s", name, p.Cause)
		}
		if a.Header.Get("WWW-Authenticate") == "" {
			t.Errorf("%s: no WWW-Authenticate", name)
		}
	}
	request(t, s, "DELETE", "/v1/sandboxes/box?wait=10", "")
	for _, path := range []string{"/v1/sandboxes/box", "/v1/sandboxes", "/v1/node"} {
		problem(t, requestAs(t, s, token, "GET", path, ""), 401, "unauthenticated")
	}
	create(t, s, `{"template":"mini","name":"box"}`)
	problem(t, requestAs(t, s, token, "GET", "/v1/sandboxes/box", ""), 401, "unauthenticated")
}

func TestCreateToken(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	box := create(t, s, `{"template":"mini","name":"box"}`)
	for body, ttl := range map[string]time.Duration{
		`{"scopes":["files","commands","files"]}`:                      time.Hour,
		`{"scopes":["commands","files"],"ttl_seconds":0.5}`:            500 * time.Millisecond,
		`{"scopes":["commands","files"],"ttl_seconds":604800}`:         7 * 24 * time.Hour,
		`{"scopes":["commands","files"],"ttl_seconds":7.2e3}`:          2 * time.Hour,
		`{"ttl_seconds":1,"scopes":["commands","commands", "files"]} `: time.Second,
	} {
		began := time.Now()
		a := requestAs(t, s, httpapitest.DeveloperKey, "POST", "/v1/sandboxes/box/tokens", body)
		got := read[apiv1.SandboxToken](t, a, 201)
		if strings.Join(got.Scopes, ",") != "commands,files" || !strings.HasPrefix(got.Token, "space_sbx_") {
			t.Errorf("%s: %+v", body, got)
		}
		if early, late := began.Add(ttl), time.Now().Add(ttl+time.Second); got.ExpiresAt.Before(early) || got.ExpiresAt.After(late) {
			t.Errorf("%s: expires %v, want %v", body, got.ExpiresAt, early)
		}
	}
	for body, field := range map[string]string{
		`{"scopes":[]}`:                                   "scopes",
		`{"scopes":null}`:                                 "scopes",
		`{"scopes":"files"}`:                              "scopes",
		`{"scopes":["ports:3000"]}`:                       "scopes[0]",
		`{"scopes":["files","*"]}`:                        "scopes[1]",
		`{"scopes":["files"],"ttl_seconds":0}`:            "ttl_seconds",
		`{"scopes":["files"],"ttl_seconds":-1}`:           "ttl_seconds",
		`{"scopes":["files"],"ttl_seconds":604801}`:       "ttl_seconds",
		`{"scopes":["files"],"ttl_seconds":1e300}`:        "ttl_seconds",
		`{"scopes":["files"],"ttl_seconds":"1h"}`:         "ttl_seconds",
		`{"scopes":["files"],"sandbox":"` + box.ID + `"}`: "sandbox",
	} {
		a := request(t, s, "POST", "/v1/sandboxes/box/tokens", body)
		p := read[apiv1.Problem](t, a, 400)
		if len(p.Fields) != 1 || p.Fields[0].Field != field {
			t.Errorf("%s: %+v", body, p)
		}
		if strings.Contains(body, "ports") && !strings.Contains(p.Cause, "commands, files") {
			t.Errorf("it does not name what there is: %s", p.Cause)
		}
	}
	problem(t, request(t, s, "POST", "/v1/sandboxes/nobody/tokens", `{"scopes":["files"]}`), 404, "not_found")
	problem(t, request(t, s, "POST", "/v1/sandboxes/box/tokens", ""), 400, "malformed_body")
}

// TestTokenIdempotency: the same Idempotency-Key from a key, a token and another token are three requests.
func TestTokenIdempotency(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	box := create(t, s, `{"template":"mini","name":"box"}`)
	ids := map[string]bool{}
	keys := []string{httpapitest.AdminKey, tokenFor(t, s, "box", "commands"), tokenFor(t, s, "box", "commands")}
	for _, key := range keys {
		first := command(t, s, key, box.ID, "Idempotency-Key: k")
		again := command(t, s, key, box.ID, "Idempotency-Key: k")
		a, b := read[apiv1.CreatedCommand](t, first, 201), read[apiv1.CreatedCommand](t, again, 201)
		if a.ID != b.ID || first.Header.Get("Idempotency-Replayed") != "" || again.Header.Get("Idempotency-Replayed") != "true" {
			t.Errorf("%s and %s", a.ID, b.ID)
		}
		ids[a.ID] = true
	}
	if len(ids) != len(keys) {
		t.Errorf("%d sessions of %d callers", len(ids), len(keys))
	}
	body := `{"scopes":["files"]}`
	one := read[apiv1.SandboxToken](t, request(t, s, "POST", "/v1/sandboxes/box/tokens", body, "Idempotency-Key: t"), 201)
	a := request(t, s, "POST", "/v1/sandboxes/box/tokens", body, "Idempotency-Key: t")
	if two := read[apiv1.SandboxToken](t, a, 201); two.Token == one.Token || a.Header.Get("Idempotency-Replayed") != "true" {
		t.Error("a replay is not told")
	}
	problem(t, request(t, s, "POST", "/v1/sandboxes/box/tokens", `{"scopes":["commands"]}`, "Idempotency-Key: t"), 409, "idempotency_conflict")
}
