package httpapi_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/httpapi"
	"github.com/space-sandbox/space/internal/httpapi/httpapitest"
	"github.com/space-sandbox/space/internal/sandbox"
)

// update writes the generated files instead of comparing them. It is read only.
var update = flag.Bool("update", false, "write api/openapi.yaml and docs/errors.md")

type route struct{ method, path string }

func (r route) String() string { return r.method + " " + r.path }

// example is a path of the route.
func (r route) example() string {
	p := strings.ReplaceAll(r.path, "{id}", "aaaaaaaaaaaaaaaaaaaa")
	return strings.ReplaceAll(p, "{ref}", "mini")
}

func cut(s string) (method, path string) {
	method, path, _ = strings.Cut(s, " ")
	return method, path
}

type spec struct {
	OpenAPI    string
	Paths      map[string]map[string]json.RawMessage
	Components struct{ Schemas map[string]schema }
}

type schema struct {
	Properties map[string]struct{ Minimum, Maximum *float64 }
	Required   []string
}

func readSpec(t *testing.T, s *httpapitest.Server) spec {
	t.Helper()
	a := requestAs(t, s, "", "GET", "/openapi.json", "")
	var v spec
	if err := json.Unmarshal(a.body, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func specRoutes(t *testing.T, s *httpapitest.Server) []route {
	t.Helper()
	var out []route
	for path, item := range readSpec(t, s).Paths {
		for method := range item {
			out = append(out, route{strings.ToUpper(method), path})
		}
	}
	if len(out) < 20 {
		t.Fatalf("only %d routes", len(out))
	}
	return out
}

func TestSpecHasEveryRouteOfTheContract(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	have := map[string]bool{}
	for _, r := range specRoutes(t, s) {
		have[r.String()] = true
	}
	for _, want := range []string{
		"POST /v1/sandboxes", "GET /v1/sandboxes", "GET /v1/sandboxes/{id}", "PATCH /v1/sandboxes/{id}", "DELETE /v1/sandboxes/{id}",
		"POST /v1/sandboxes/{id}/pause", "POST /v1/sandboxes/{id}/resume", "POST /v1/sandboxes/{id}/recover",
		"POST /v1/sandboxes/{id}/tokens",
		"GET /v1/operations", "GET /v1/operations/{id}", "POST /v1/operations/{id}/cancel", "GET /v1/events",
		"POST /v1/sandboxes/{id}/commands", "GET /v1/sandboxes/{id}/commands", "POST /v1/sandboxes/{id}/exec",
		"GET /v1/commands/{id}", "DELETE /v1/commands/{id}", "POST /v1/commands/{id}/attach", "POST /v1/commands/{id}/signal", "POST /v1/commands/{id}/resize",
		"GET /v1/commands/{id}/transcript", "POST /v1/commands/{id}/stdin",
		"GET /v1/sandboxes/{id}/files", "PUT /v1/sandboxes/{id}/files", "DELETE /v1/sandboxes/{id}/files",
		"GET /v1/sandboxes/{id}/files/stat", "GET /v1/sandboxes/{id}/files/list", "POST /v1/sandboxes/{id}/files/mkdir",
		"POST /v1/sandboxes/{id}/files/move", "GET /v1/sandboxes/{id}/files/watch", "GET /v1/sandboxes/{id}/files/archive",
		"PUT /v1/sandboxes/{id}/files/archive", "GET /v1/templates", "GET /v1/templates/{ref}",
		"POST /v1/templates", "DELETE /v1/templates/{ref}",
		"GET /v1/node", "POST /v1/node/drain", "GET /v1/node/ledger", "POST /v1/node/reconcile", "GET /healthz", "GET /readyz", "GET /metrics",
	} {
		if !have[want] {
			t.Errorf("%s is missing", want)
		}
		delete(have, want)
	}
	if len(have) > 0 {
		t.Errorf("not in the contract: %v", have)
	}
}

// Every reference in the description leads somewhere.
func TestSpecReferences(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	v := readSpec(t, s)
	if v.OpenAPI != "3.1.0" {
		t.Errorf("OpenAPI %q", v.OpenAPI)
	}
	body := requestAs(t, s, "", "GET", "/openapi.json", "").body
	for _, m := range regexp.MustCompile(`"#/components/schemas/([^"]+)"`).FindAllSubmatch(body, -1) {
		if _, ok := v.Components.Schemas[string(m[1])]; !ok {
			t.Errorf("no schema %s", m[1])
		}
	}
	if strings.Contains(string(body), "ErrorModel") {
		t.Error("huma's error model is still there")
	}
}

// The bounds in the tags of apiv1 are the domain's.
func TestSpecBounds(t *testing.T) {
	t.Parallel()
	create := readSpec(t, httpapitest.Serve(t)).Components.Schemas["CreateSandbox"]
	for field, want := range map[string][2]float64{
		"vcpus":      {sandbox.MinVCPUs, sandbox.MaxVCPUs},
		"memory_mib": {sandbox.MinMemoryMiB, sandbox.MaxMemoryMiB},
		"disk_mib":   {sandbox.MinDiskMiB, sandbox.MaxDiskMiB},
	} {
		p := create.Properties[field]
		if *p.Minimum != want[0] || *p.Maximum != want[1] {
			t.Errorf("%s: %v to %v, want %v", field, *p.Minimum, *p.Maximum, want)
		}
		tag, _ := reflect.TypeFor[apiv1.CreateSandbox]().FieldByNameFunc(func(n string) bool { return strings.EqualFold(n, strings.ReplaceAll(field, "_", "")) })
		def := map[string]int{"vcpus": sandbox.DefaultVCPUs, "memory_mib": sandbox.DefaultMemoryMiB, "disk_mib": sandbox.DefaultDiskMiB}[field]
		if doc := tag.Tag.Get("doc"); !strings.Contains(doc, fmt.Sprint(def)) {
			t.Errorf("%s: doc %q does not say the default %d", field, doc, def)
		}
	}
}

func TestDocsPage(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	a := requestAs(t, s, "", "GET", "/docs", "")
	page := string(a.body)
	if a.Header.Get("Content-Type") != "text/html; charset=utf-8" || a.Header.Get("Content-Security-Policy") == "" {
		t.Errorf("%v", a.Header)
	}
	for _, r := range specRoutes(t, s) {
		if !strings.Contains(page, `<span class="method">`+r.method+`</span> `+r.path+`</code>`) {
			t.Errorf("%s is not on the page", r)
		}
	}
	for _, bad := range []string{"<script", "http://", "https://", "src="} {
		if strings.Contains(strings.ReplaceAll(page, "http://127.0.0.1", ""), bad) {
			t.Errorf("the page loads something: %s", bad)
		}
	}
}

// generated compares a file of the repository with what it is made from, or writes it with -update.
func generated(t *testing.T, path string, want []byte) {
	t.Helper()
	path = filepath.Join("..", "..", path)
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("%s is stale: run go test ./internal/httpapi -run Generated -update", path)
	}
}

func TestGeneratedOpenAPI(t *testing.T) {
	t.Parallel()
	yaml, err := httpapi.OpenAPIYAML()
	if err != nil {
		t.Fatal(err)
	}
	generated(t, "api/openapi.yaml", append([]byte("# Generated from the Go types by: go test ./internal/httpapi -run Generated -update\n"), yaml...))
}

func TestGeneratedErrors(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("# Errors\n\n<!-- Generated from internal/sandbox/errors.go by: go test ./internal/httpapi -run Generated -update -->\n\n" +
		"Every answer that is not 2xx, and the `error` of every failed operation, has one form (`application/problem+json`):\n" +
		"`status`, `code`, `message` (what happened), `cause` (why), `remedy` (what to do), `retryable`, and where they apply\n" +
		"`operation_id`, `sandbox_id` and `fields`. 429 and 503 mean that nothing happened, and come with `Retry-After`.\n\n" +
		"| Code | Status | Retryable | Meaning | What helps, when the error says nothing better |\n|---|---|---|---|---|\n")
	for _, c := range sandbox.Codes() {
		retryable := "no"
		if c.Retryable {
			retryable = "yes"
		}
		fmt.Fprintf(&b, "| `%s` | %d | %s | %s | %s |\n", c.Code, c.Status, retryable, c.Meaning, c.Remedy)
	}
	b.WriteString("\nThe `error` of a command session that never started, or was ended early, has a code of its own: `command_not_found`,\n" +
		"`cwd_not_found`, `user_not_found`, `permission_denied`, `start_failed`, `deadline_exceeded`, `canceled` (deleted before its start).\n")
	generated(t, "docs/errors.md", []byte(b.String()))
}

// TestGeneratedVerbs prints the table of verbs and states into the page about the lifecycle.
func TestGeneratedVerbs(t *testing.T) {
	t.Parallel()
	const path, begin, end = "docs/lifecycle.md", "<!-- verbs:begin -->\n", "<!-- verbs:end -->"
	raw, err := os.ReadFile(filepath.Join("..", "..", path))
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(raw), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", path)
	}
	generated(t, path, []byte(before+begin+sandbox.VerbTable()+end+after))
}
