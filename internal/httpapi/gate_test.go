package httpapi_test

import (
	"strings"
	"testing"

	"github.com/space-sandbox/space/internal/httpapi/httpapitest"
)

func TestAuthentication(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	for name, row := range map[string]struct {
		header string
		status int
	}{
		"bearer":                    {"Authorization: Bearer " + httpapitest.DeveloperKey, 200},
		"bearer in lower case":      {"Authorization: bearer " + httpapitest.DeveloperKey, 200},
		"X-API-Key":                 {"X-API-Key: " + httpapitest.DeveloperKey, 200},
		"none":                      {"X-Nothing: 1", 401},
		"unknown":                   {"Authorization: Bearer e2b_ffffffffffffffffffffffffffffffffffffffff", 401},
		"basic":                     {"Authorization: Basic " + httpapitest.DeveloperKey, 401},
		"bearer of nothing":         {"Authorization: Bearer ", 401},
		"bearer without word":       {"Authorization: " + httpapitest.DeveloperKey, 401},
		"endless":                   {"X-API-Key: " + strings.Repeat("x", 10_000), 401},
		"Authorization wins if bad": {"Authorization: Bearer nonsense", 401},
	} {
		a := requestAs(t, s, "", "GET", "/v1/sandboxes", "", row.header)
		if a.StatusCode != row.status {
			t.Errorf("%s: status %d: %s", name, a.StatusCode, a.body)
		}
		if row.status == 401 {
			problem(t, a, 401, "unauthenticated")
			if a.Header.Get("WWW-Authenticate") == "" {
				t.Errorf("%s: no WWW-Authenticate", name)
			}
		}
	}
}

// Every route but the open ones needs a key, and says so before it looks at anything else.
func TestEveryRouteNeedsAKey(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	open := map[string]bool{"GET /healthz": true, "GET /readyz": true}
	for _, route := range specRoutes(t, s) {
		if open[route.String()] {
			if a := requestAs(t, s, "", route.method, route.example(), ""); a.StatusCode != 200 {
				t.Errorf("%s: %d", route, a.StatusCode)
			}
			continue
		}
		problem(t, requestAs(t, s, "", route.method, route.example()+"?bad=1", "not even json"), 401, "unauthenticated")
	}
	for _, path := range []string{"/openapi.json", "/docs"} {
		if a := requestAs(t, s, "", "GET", path, ""); a.StatusCode != 200 {
			t.Errorf("%s: %d", path, a.StatusCode)
		}
	}
}

func TestRoles(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	problem(t, requestAs(t, s, httpapitest.DeveloperKey, "GET", "/v1/node", ""), 403, "forbidden")
	if a := request(t, s, "GET", "/v1/node", ""); a.StatusCode != 200 {
		t.Errorf("admin: %d", a.StatusCode)
	}
}

// What has not landed, does not exist.
func TestUnknownRoutes(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	create(t, s, `{"template":"mini","name":"box"}`)
	for _, route := range []string{
		"POST /v1/sandboxes/box/suspend", "POST /v1/sandboxes/box/wake",
		"POST /v1/sandboxes/box/checkpoints", "GET /v1/sandboxes/box/checkpoints", "POST /v1/sandboxes/box/rollback",
		"POST /v1/sandboxes/box/fork",
		"GET /v1/sandboxes/box/files/", "GET /v1/sandboxes/box/files/copy", "GET /v1/sandboxes/box/files/stat/x",
		"GET /v1/policies/x", "PUT /v1/sandboxes/box/policy", "GET /v1/secrets/x", "GET /v1/node/flows", "GET /v1/checkpoints/cp_1",
		"GET /", "GET /v1", "GET /v1/", "GET /v2/sandboxes", "GET /v1/sandboxes/", "GET /v1/templates/", "GET /v1//sandboxes", "GET /v1/../v1/sandboxes",
		"GET /v1/sandboxes/box/", "GET /v1/sandboxes/./box", "GET /favicon.ico",
	} {
		method, path := cut(route)
		problem(t, request(t, s, method, path, ""), 404, "not_found")
	}
}

func TestWrongMethods(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	for route, allow := range map[string]string{
		"PUT /v1/sandboxes":                 "GET, HEAD, POST",
		"DELETE /v1/sandboxes":              "GET, HEAD, POST",
		"POST /v1/sandboxes/box":            "DELETE, GET, HEAD, PATCH",
		"PUT /v1/templates":                 "DELETE, GET, HEAD, POST",
		"POST /v1/sandboxes/box/files":      "DELETE, GET, HEAD, PUT",
		"GET /v1/sandboxes/box/files/mkdir": "POST",
		"POST /v1/sandboxes/box/files/stat": "GET, HEAD",
		"POST /healthz":                     "GET, HEAD",
		"OPTIONS /v1/sandboxes/box/exec":    "POST",
		"TRACE /v1/operations/op_x/cancel":  "POST",
		"BREW /v1/sandboxes/box/commands":   "GET, HEAD, POST",
		"PUT /v1/templates/mini%3Alatest":   "DELETE, GET, HEAD",
	} {
		method, path := cut(route)
		a := request(t, s, method, path, "")
		problem(t, a, 405, "method_not_allowed")
		if got := a.Header.Get("Allow"); got != allow {
			t.Errorf("%s: Allow %q, want %q", route, got, allow)
		}
	}
}

func TestHead(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	if a := request(t, s, "HEAD", "/v1/sandboxes", ""); a.StatusCode != 200 || len(a.body) > 0 {
		t.Errorf("%d %q", a.StatusCode, a.body)
	}
	if a := request(t, s, "HEAD", "/v1/sandboxes/nobody", ""); a.StatusCode != 404 || len(a.body) > 0 {
		t.Errorf("%d %q", a.StatusCode, a.body)
	}
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	a := request(t, s, "GET", "/v1/sandboxes", "", "Accept: text/html")
	for name, want := range map[string]string{"Content-Type": "application/json", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"} {
		if got := a.Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
