package httpapi_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/httpapi/httpapitest"
	"github.com/space-sandbox/space/internal/sandbox"
)

func TestTemplates(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	list := read[apiv1.List[apiv1.Template]](t, request(t, s, "GET", "/v1/templates", ""), 200)
	var got []string
	for _, item := range list.Items {
		got = append(got, item.Name+" "+strings.Join(item.Tags, ","))
	}
	if diff := cmp.Diff([]string{"ns/broken latest", "slow latest", "mini latest,v1"}, got); diff != "" {
		t.Error(diff)
	}
	mini := list.Items[2]
	for _, ref := range []string{"mini", "mini:latest", "mini:v1", "mini%3Av1", mini.Digest, strings.Replace(mini.Digest, ":", "%3A", 1)} {
		one := read[apiv1.Template](t, request(t, s, "GET", "/v1/templates/"+ref, ""), 200)
		if diff := cmp.Diff(mini, one); diff != "" {
			t.Errorf("%s: %s", ref, diff)
		}
	}
	for _, ref := range []string{"ns/broken", "ns%2Fbroken", "ns%2Fbroken%3Alatest", "ns/broken:latest"} {
		if one := read[apiv1.Template](t, request(t, s, "GET", "/v1/templates/"+ref, ""), 200); one.Name != "ns/broken" || one.User != "root" {
			t.Errorf("%s: %+v", ref, one)
		}
	}
	for _, ref := range []string{"nope", "mini:v9", "a/b/c", "%2e%2e"} {
		problem(t, request(t, s, "GET", "/v1/templates/"+ref, ""), 404, "template_not_found")
	}
}

func TestTemplatePages(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	first := read[apiv1.List[apiv1.Template]](t, request(t, s, "GET", "/v1/templates?limit=2&order=asc&count=true", ""), 200)
	if len(first.Items) != 2 || *first.Total != 3 || first.NextCursor == "" {
		t.Fatalf("%+v", first)
	}
	second := read[apiv1.List[apiv1.Template]](t, request(t, s, "GET", "/v1/templates?limit=2&order=asc&cursor="+first.NextCursor, ""), 200)
	if len(second.Items) != 1 || second.Items[0].Name != "ns/broken" || second.NextCursor != "" {
		t.Errorf("%+v", second)
	}
	problem(t, request(t, s, "GET", "/v1/templates?cursor=nonsense", ""), 400, "invalid_argument")
}

func TestNode(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	n := read[apiv1.Node](t, request(t, s, "GET", "/v1/node", ""), 200)
	if n.Version != "v0.0.1-test" || n.InstallationID != "abc123" || len(n.Drivers) != 2 || n.Pool.Kind != "copy" || n.Capacity.CPUs != 2 {
		t.Errorf("%+v", n)
	}
	if !slices.Contains(n.Warnings, "development authentication: not for production") {
		t.Errorf("warnings: %q", n.Warnings)
	}
}

func TestLedger(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	l := read[apiv1.Ledger](t, request(t, s, "GET", "/v1/node/ledger", ""), 200)
	if l.Drift != 2 || len(l.Objects) != 2 || l.Kinds["cgroup"] != (apiv1.LedgerKind{Live: 1}) || !l.Objects[0].Live || !l.Objects[1].Expected {
		t.Errorf("%+v", l)
	}
	for range 2 { // a dry run changes nothing
		dry := read[apiv1.Reconciled](t, request(t, s, "POST", "/v1/node/reconcile", `{"dry_run":true}`), 200)
		if !dry.DryRun || len(dry.Repairs) != 2 || dry.Repairs[0].Done || dry.Repairs[0].Action != "remove" || dry.Repairs[1].Action != "report" || dry.Repairs[1].Reason == "" {
			t.Errorf("%+v", dry)
		}
	}
	if done := read[apiv1.Reconciled](t, request(t, s, "POST", "/v1/node/reconcile", `{}`), 200); !done.Repairs[0].Done || done.DryRun {
		t.Errorf("%+v", done)
	}
	if l = read[apiv1.Ledger](t, request(t, s, "GET", "/v1/node/ledger", ""), 200); l.Drift != 1 {
		t.Errorf("%+v", l)
	}
	problem(t, request(t, s, "POST", "/v1/node/reconcile", `{"dry":true}`), 400, "unknown_field")
	for _, route := range []string{"GET /v1/node/ledger", "POST /v1/node/reconcile"} {
		method, path := cut(route)
		problem(t, requestAs(t, s, httpapitest.DeveloperKey, method, path, ""), 403, "forbidden")
	}
}

func TestDrain(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	if d := read[apiv1.Drain](t, request(t, s, "POST", "/v1/node/drain", `{"drain":true}`), 200); !d.Draining {
		t.Errorf("%+v", d)
	}
	if n := read[apiv1.Node](t, request(t, s, "GET", "/v1/node", ""), 200); !n.Draining || n.MaxSandboxes != 100 {
		t.Errorf("%+v", n)
	}
	a := request(t, s, "POST", "/v1/sandboxes", `{"template":"mini"}`)
	if p := problem(t, a, 503, "draining"); !p.Retryable || a.Header.Get("Retry-After") != "30" {
		t.Errorf("%+v, Retry-After %q", p, a.Header.Get("Retry-After"))
	}
	problem(t, request(t, s, "POST", "/v1/node/drain", `{}`), 400, "invalid_argument")
	read[apiv1.Drain](t, request(t, s, "POST", "/v1/node/drain", `{"drain":false}`), 200)
	read[apiv1.Lifecycle](t, request(t, s, "POST", "/v1/sandboxes", `{"template":"mini"}`), 202)
}

func TestHealth(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	if h := read[apiv1.Health](t, requestAs(t, s, "", "GET", "/readyz", ""), 200); h.Status != "ready" {
		t.Errorf("%+v", h)
	}
	s.SetNotReady(&sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the gateway does not answer"})
	a := requestAs(t, s, "", "GET", "/readyz", "")
	p := problem(t, a, 503, "unavailable")
	if p.Cause != "the gateway does not answer" || a.Header.Get("Retry-After") == "" {
		t.Errorf("%+v, Retry-After %q", p, a.Header.Get("Retry-After"))
	}
	read[apiv1.Health](t, requestAs(t, s, "", "GET", "/healthz", ""), 200)
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	a := request(t, s, "GET", "/metrics", "")
	if a.StatusCode != 200 || !strings.HasPrefix(a.Header.Get("Content-Type"), "text/plain") || !strings.Contains(string(a.body), "space_sandboxes 0") {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
}
