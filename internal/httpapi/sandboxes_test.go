package httpapi_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/httpapi/httpapitest"
)

func TestCreateAnswersAtOnce(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	a := request(t, s, "POST", "/v1/sandboxes", `{"template":"slow"}`)
	got := read[apiv1.Lifecycle](t, a, 202)
	if got.Operation.State != "running" || got.Sandbox.State != "creating" || got.Operation.Resource.ID != got.Sandbox.ID {
		t.Errorf("%+v", got)
	}
	if a.Header.Get("Location") != "/v1/operations/"+got.Operation.ID {
		t.Errorf("Location %q", a.Header.Get("Location"))
	}
	if got.Sandbox.VCPUs != 1 || got.Sandbox.MemoryMiB != 512 || got.Sandbox.DiskMiB != 4096 {
		t.Errorf("defaults: %+v", got.Sandbox)
	}
}

func TestCreateWaits(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	for _, header := range []string{"?wait=10s", "?wait=10", "?wait=10.5", "Prefer: wait=10", "Prefer: respond-async, wait=\"10\""} {
		path, headers := "/v1/sandboxes", []string{}
		if header[0] == '?' {
			path += header
		} else {
			headers = []string{header}
		}
		got := read[apiv1.Lifecycle](t, request(t, s, "POST", path, `{"template":"mini"}`, headers...), 200)
		if got.Operation.State != "succeeded" || got.Sandbox.State != "running" || got.Operation.Result.Sandbox.ID != got.Sandbox.ID {
			t.Errorf("%s: %+v", header, got)
		}
	}
}

func TestCreateWaitRunsOut(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	got := read[apiv1.Lifecycle](t, request(t, s, "POST", "/v1/sandboxes?wait=0.01", `{"template":"slow"}`), 202)
	if got.Operation.State != "running" {
		t.Errorf("%+v", got.Operation)
	}
	s.Finish()
	op := read[apiv1.Operation](t, request(t, s, "GET", "/v1/operations/"+got.Operation.ID+"?wait=10", ""), 200)
	if op.State != "succeeded" || op.Result.Sandbox == nil || *op.Steps[0].MS < 1 {
		t.Errorf("%+v", op)
	}
}

func TestCreateFailsWithItsError(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	p := problem(t, request(t, s, "POST", "/v1/sandboxes?wait=10", `{"template":"ns/broken"}`), 502, "vmm_failed")
	if p.SandboxID == "" || p.OperationID == "" || p.Cause == "" || p.Remedy == "" {
		t.Errorf("%+v", p)
	}
	// The operation itself is found, with its error inside.
	op := read[apiv1.Operation](t, request(t, s, "GET", "/v1/operations/"+p.OperationID, ""), 200)
	if op.State != "failed" || op.Error.Code != "vmm_failed" || op.Error.SandboxID != p.SandboxID || op.Result != nil {
		t.Errorf("%+v", op)
	}
	box := read[apiv1.Sandbox](t, request(t, s, "GET", "/v1/sandboxes/"+p.SandboxID, ""), 200)
	if box.State != "failed" || *box.Reason != "create_failed" {
		t.Errorf("%+v", box)
	}
}

// The shape of the objects is the contract: null where it says null, absent where it says absent.
func TestSandboxAndOperationShape(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	var got struct{ Operation, Sandbox map[string]any }
	if err := json.Unmarshal(request(t, s, "POST", "/v1/sandboxes", `{"template":"slow"}`).body, &got); err != nil {
		t.Fatal(err)
	}
	wantSandbox := []string{"created_at", "desired_state", "disk_mib", "driver", "endpoints", "id", "isolation", "memory_mib",
		"metadata", "operation_id", "ready_at", "reason", "state", "template", "vcpus"}
	if diff := cmp.Diff(wantSandbox, slices.Sorted(maps.Keys(got.Sandbox))); diff != "" {
		t.Error(diff)
	}
	if got.Sandbox["reason"] != nil || got.Sandbox["ready_at"] != nil || got.Sandbox["metadata"] == nil {
		t.Errorf("%v", got.Sandbox)
	}
	wantOperation := []string{"attempt", "created_at", "ended_at", "error", "id", "kind", "resource", "result", "started_at", "state", "steps"}
	if diff := cmp.Diff(wantOperation, slices.Sorted(maps.Keys(got.Operation))); diff != "" {
		t.Error(diff)
	}
	if got.Operation["result"] != nil || got.Operation["error"] != nil || got.Operation["ended_at"] != nil {
		t.Errorf("%v", got.Operation)
	}
	if diff := cmp.Diff(map[string]any{"data_plane": s.DataURL}, got.Sandbox["endpoints"]); diff != "" {
		t.Error(diff)
	}
}

func TestGetByIDAndName(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	box := create(t, s, `{"template":"mini","name":"web","metadata":{"team":"x"},"env":{"A":"b"},"vcpus":2,"memory_mib":256,"disk_mib":1024}`)
	for _, ref := range []string{box.ID, "web"} {
		got := read[apiv1.Sandbox](t, request(t, s, "GET", "/v1/sandboxes/"+ref, ""), 200)
		if diff := cmp.Diff(box, got); diff != "" {
			t.Errorf("%s: %s", ref, diff)
		}
	}
	problem(t, request(t, s, "POST", "/v1/sandboxes", `{"template":"mini","name":"web"}`), 409, "name_taken")
	for _, ref := range []string{"nobody", "aaaaaaaaaaaaaaaaaaaa", "NO", "a%2Fb", "%00", "%FF"} {
		problem(t, request(t, s, "GET", "/v1/sandboxes/"+ref, ""), 404, "not_found")
	}
}

func TestPatch(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	box := create(t, s, `{"template":"mini","name":"one","metadata":{"a":"1"}}`)
	for _, step := range []struct {
		body, name string
		metadata   map[string]string
	}{
		{`{}`, "one", map[string]string{"a": "1"}},
		{`{"name":"two"}`, "two", map[string]string{"a": "1"}},
		{`{"metadata":{"b":"2"}}`, "two", map[string]string{"b": "2"}},
		{`{"metadata":null}`, "two", map[string]string{}},
		{`{"name":null}`, "", map[string]string{}},
		{`{"name":"three","metadata":{"c":"3"}}`, "three", map[string]string{"c": "3"}},
		{`{"name":""}`, "", map[string]string{"c": "3"}},
	} {
		got := read[apiv1.Sandbox](t, request(t, s, "PATCH", "/v1/sandboxes/"+box.ID, step.body), 200)
		if got.Name != step.name || !maps.Equal(got.Metadata, step.metadata) {
			t.Errorf("%s: name %q, metadata %v", step.body, got.Name, got.Metadata)
		}
	}
	problem(t, request(t, s, "PATCH", "/v1/sandboxes/"+box.ID, `{"name":"Not Valid"}`), 400, "invalid_argument")
	problem(t, request(t, s, "PATCH", "/v1/sandboxes/"+box.ID, ``), 400, "malformed_body")
}

func TestLease(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	box := create(t, s, `{"template":"mini","lease":{"ttl_seconds":60.5,"on_expiry":"pause"}}`)
	if l := box.Lease; l == nil || l.TTLSeconds != 60.5 || l.OnExpiry != "pause" || l.ExpiresAt != nil || l.RemainingSeconds == nil || *l.RemainingSeconds != 60.5 {
		t.Errorf("%+v", l)
	}
	if l := create(t, s, `{"template":"mini","lease":{"ttl_seconds":1}}`).Lease; l == nil || l.OnExpiry != "delete" {
		t.Errorf("the default: %+v", l)
	}
	if l := create(t, s, `{"template":"mini"}`).Lease; l != nil {
		t.Errorf("none: %+v", l)
	}
	patched := func(body string) *apiv1.Lease {
		t.Helper()
		return read[apiv1.Sandbox](t, request(t, s, "PATCH", "/v1/sandboxes/"+box.ID, body), 200).Lease
	}
	first := patched(`{"lease":{"ttl_seconds":100,"mode":"set","on_expiry":"delete"}}`)
	if first.TTLSeconds != 100 || first.OnExpiry != "delete" || first.ExpiresAt == nil || first.RemainingSeconds != nil {
		t.Errorf("set: %+v", first)
	}
	if l := patched(`{"lease":{"ttl_seconds":10,"mode":"extend"}}`); l.TTLSeconds != 100 || l.ExpiresAt.Sub(*first.ExpiresAt).Seconds() != 10 {
		t.Errorf("extended: %+v", l)
	}
	if l := patched(`{"name":"x"}`); l == nil {
		t.Error("another change removed the lease")
	}
	if l := patched(`{"lease":null}`); l != nil {
		t.Errorf("removed: %+v", l)
	}
	for _, body := range []string{`{"lease":{"ttl_seconds":5,"mode":"shorten"}}`, `{"lease":{"ttl_seconds":5,"on_expiry":"suspend"}}`, `{"lease":{"mode":"set"}}`, `{"lease":5}`} {
		problem(t, request(t, s, "PATCH", "/v1/sandboxes/"+box.ID, body), 400, "invalid_argument")
	}
}

func TestDelete(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	box := create(t, s, `{"template":"mini"}`)
	got := read[apiv1.Lifecycle](t, request(t, s, "DELETE", "/v1/sandboxes/"+box.ID+"?wait=10", ""), 200)
	if got.Operation.Kind != "delete" || got.Sandbox.State != "deleted" || got.Sandbox.OperationID != "" {
		t.Errorf("%+v", got)
	}
	problem(t, request(t, s, "GET", "/v1/sandboxes/"+box.ID, ""), 404, "not_found")
	problem(t, request(t, s, "DELETE", "/v1/sandboxes/"+box.ID, ""), 404, "not_found")
}

func TestDeleteWhileDeleting(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	create(t, s, `{"template":"mini","name":"sticky"}`)
	first := read[apiv1.Lifecycle](t, request(t, s, "DELETE", "/v1/sandboxes/sticky", ""), 202)
	second := read[apiv1.Lifecycle](t, request(t, s, "DELETE", "/v1/sandboxes/sticky", ""), 202)
	if first.Operation.ID != second.Operation.ID || second.Sandbox.State != "deleting" {
		t.Errorf("%+v, then %+v", first, second)
	}
}

func TestDeleteConditions(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	read[apiv1.Lifecycle](t, request(t, s, "POST", "/v1/sandboxes", `{"template":"slow","name":"busy"}`), 202)
	problem(t, request(t, s, "DELETE", "/v1/sandboxes/busy?if_state=running", ""), 412, "state_mismatch")
	p := problem(t, request(t, s, "DELETE", "/v1/sandboxes/busy?if_busy=fail", ""), 409, "sandbox_busy")
	if !p.Retryable {
		t.Errorf("%+v", p)
	}
	problem(t, request(t, s, "DELETE", "/v1/sandboxes/busy?if_busy=maybe", ""), 400, "invalid_argument")
	problem(t, request(t, s, "DELETE", "/v1/sandboxes/busy?if_state=asleep", ""), 400, "invalid_argument")
	read[apiv1.Lifecycle](t, request(t, s, "DELETE", "/v1/sandboxes/busy?if_state=creating&wait=10", ""), 200)
}

func TestListSandboxes(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	var boxes []apiv1.Sandbox
	for i := range 5 {
		boxes = append(boxes, create(t, s, fmt.Sprintf(`{"template":"mini","name":"box-%d","metadata":{"odd":"%v","a.b":"c=d"}}`, i, i%2 == 1)))
	}
	request(t, s, "DELETE", "/v1/sandboxes/box-4?wait=10", "")
	for query, want := range map[string][]string{
		"":                              {"box-3", "box-2", "box-1", "box-0"},
		"order=asc":                     {"box-0", "box-1", "box-2", "box-3"},
		"state=deleted":                 {"box-4"},
		"state=running,deleted&limit=2": {"box-4", "box-3"},
		"metadata.odd=true":             {"box-3", "box-1"},
		"metadata.a.b=c%3Dd&order=asc":  {"box-0", "box-1", "box-2", "box-3"},
		"template=slow:latest":          {},
		"created_after=" + boxes[2].CreatedAt.Format("2006-01-02T15:04:05Z07:00"): {"box-3"},
	} {
		got := names(read[apiv1.List[apiv1.Sandbox]](t, request(t, s, "GET", "/v1/sandboxes?"+query, ""), 200).Items)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", query, diff)
		}
	}
}

func names(boxes []apiv1.Sandbox) []string {
	out := []string{}
	for _, b := range boxes {
		out = append(out, b.Name)
	}
	return out
}

func TestListPages(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	for i := range 5 {
		create(t, s, fmt.Sprintf(`{"template":"mini","name":"box-%d"}`, i))
	}
	var got []string
	for cursor, pages := "", 0; ; pages++ {
		page := read[apiv1.List[apiv1.Sandbox]](t, request(t, s, "GET", "/v1/sandboxes?limit=2&count=true&cursor="+cursor, ""), 200)
		if *page.Total != 5 {
			t.Errorf("total %d", *page.Total)
		}
		got = append(got, names(page.Items)...)
		if cursor = page.NextCursor; cursor == "" {
			break
		}
		if pages > 3 {
			t.Fatal("no end")
		}
	}
	if diff := cmp.Diff([]string{"box-4", "box-3", "box-2", "box-1", "box-0"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestListOperations(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	box := create(t, s, `{"template":"mini"}`)
	request(t, s, "DELETE", "/v1/sandboxes/"+box.ID+"?wait=10", "")
	page := read[apiv1.List[apiv1.Operation]](t, request(t, s, "GET", "/v1/operations?count=true", ""), 200)
	if len(page.Items) != 2 || *page.Total != 2 || page.Items[0].Kind != "delete" || page.Items[1].Result.Sandbox != nil {
		t.Errorf("%+v", page)
	}
	for query, want := range map[string]int{"state=succeeded": 2, "state=queued,running": 0, "created_after=2000-01-01T00:00:00Z": 2, "created_after=2099-01-01T00:00:00Z": 0} {
		if got := read[apiv1.List[apiv1.Operation]](t, request(t, s, "GET", "/v1/operations?"+query, ""), 200); len(got.Items) != want {
			t.Errorf("%s: %d items, want %d", query, len(got.Items), want)
		}
	}
	for _, bad := range []string{"state=deleted", "created_after=today", "template=mini"} {
		problem(t, request(t, s, "GET", "/v1/operations?"+bad, ""), 400, "invalid_argument")
	}
}

func TestCancelOperation(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	got := read[apiv1.Lifecycle](t, request(t, s, "POST", "/v1/sandboxes", `{"template":"slow"}`), 202)
	op := read[apiv1.Operation](t, request(t, s, "POST", "/v1/operations/"+got.Operation.ID+"/cancel", ""), 200)
	if op.State != "canceled" || op.Error.Code != "canceled" {
		t.Errorf("%+v", op)
	}
	for _, want := range []string{"", "true"} {
		again := request(t, s, "POST", "/v1/operations/"+got.Operation.ID+"/cancel", "", "Idempotency-Key: k")
		if got := read[apiv1.Operation](t, again, 200); got.State != "canceled" || again.Header.Get("Idempotency-Replayed") != want {
			t.Errorf("again: %+v %v", got, again.Header)
		}
	}
	problem(t, request(t, s, "POST", "/v1/operations/op_aaaaaaaaaaaaaaaaaaaa/cancel", "{}"), 404, "not_found")
	problem(t, request(t, s, "POST", "/v1/operations/"+got.Operation.ID+"/cancel", `{"force":true}`), 400, "unknown_field")
	problem(t, request(t, s, "GET", "/v1/operations/nonsense", ""), 404, "not_found")
}

func TestIdempotency(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	post := func(body, key string) answer {
		return request(t, s, "POST", "/v1/sandboxes?wait=10", body, "Idempotency-Key: "+key)
	}
	first := post(`{"template":"mini","vcpus":2}`, "k1")
	again := post(`{ "vcpus": 2, "template": "mini" }`, "k1") // the same request in other spelling
	a, b := read[apiv1.Lifecycle](t, first, 200), read[apiv1.Lifecycle](t, again, 200)
	if a.Operation.ID != b.Operation.ID || first.Header.Get("Idempotency-Replayed") != "" || again.Header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("%q then %q", first.Header.Get("Idempotency-Replayed"), again.Header.Get("Idempotency-Replayed"))
	}
	problem(t, post(`{"template":"mini"}`, "k1"), 409, "idempotency_conflict")
	other := read[apiv1.Lifecycle](t, post(`{"template":"mini","vcpus":2}`, "k2"), 200)
	if other.Operation.ID == a.Operation.ID {
		t.Error("another key is another request")
	}
	long := make([]byte, 129)
	for i := range long {
		long[i] = 'x'
	}
	problem(t, post(`{"template":"mini"}`, string(long)), 400, "invalid_argument")

	// A delete replayed after the sandbox is gone answers the stored operation.
	del := func() answer {
		return request(t, s, "DELETE", "/v1/sandboxes/"+a.Sandbox.ID+"?wait=10", "", "Idempotency-Key: k1")
	}
	c, d := read[apiv1.Lifecycle](t, del(), 200), read[apiv1.Lifecycle](t, del(), 200)
	if c.Operation.ID != d.Operation.ID || d.Sandbox.State != "deleted" {
		t.Errorf("%+v then %+v", c, d)
	}
}
