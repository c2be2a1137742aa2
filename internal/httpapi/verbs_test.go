package httpapi_test

import (
	"encoding/json"
	"strings"
	"testing"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/httpapi/httpapitest"
	"github.com/space-sandbox/space/internal/sandbox"
)

// TestVerbs: the form of every answer to pause, resume and recover.
func TestVerbs(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	box := create(t, s, `{"template":"mini","name":"one"}`)
	for _, v := range []struct{ verb, state string }{{"pause", "paused"}, {"resume", "running"}, {"recover", "running"}} {
		if v.verb == "recover" {
			s.Fail("one")
		}
		path := "/v1/sandboxes/one/" + v.verb
		a := request(t, s, "POST", path, "", "Idempotency-Key: k")
		first := read[apiv1.Lifecycle](t, a, 202)
		if first.Operation.Kind != v.verb || first.Sandbox.ID != box.ID || first.Sandbox.DesiredState != v.state || a.Header.Get("Location") != "/v1/operations/"+first.Operation.ID {
			t.Errorf("%s: %+v", v.verb, first)
		}
		a = request(t, s, "POST", path+"?wait=10", "", "Idempotency-Key: k")
		again := read[apiv1.Lifecycle](t, a, 200)
		if again.Operation.ID != first.Operation.ID || a.Header.Get("Idempotency-Replayed") != "true" || again.Sandbox.State != v.state || again.Operation.Result.Sandbox.State != v.state {
			t.Errorf("%s replayed: %+v", v.verb, again)
		}
		idle := read[apiv1.Lifecycle](t, request(t, s, "POST", path, ""), 200) // at once, without a wait
		if !idle.Operation.NoChange || idle.Operation.State != "succeeded" {
			t.Errorf("%s again: %+v", v.verb, idle.Operation)
		}
		if other := map[string]string{"pause": "recover"}[v.verb]; other != "" {
			p := problem(t, request(t, s, "POST", "/v1/sandboxes/one/"+other, ""), 409, "invalid_state")
			if !strings.Contains(p.Remedy, "space resume one") || !strings.Contains(p.Cause, "is paused") {
				t.Errorf("%+v", p)
			}
		}
		problem(t, request(t, s, "POST", path+"?if_state=failed", ""), 412, "state_mismatch")
		problem(t, request(t, s, "POST", path+"?if_state=asleep", ""), 400, "invalid_argument")
		problem(t, request(t, s, "POST", "/v1/sandboxes/nobody/"+v.verb, ""), 404, "not_found")
		problem(t, request(t, s, "GET", path, ""), 405, "method_not_allowed")
	}
	request(t, s, "POST", "/v1/sandboxes", `{"template":"slow","name":"busy"}`)
	problem(t, request(t, s, "POST", "/v1/sandboxes/busy/pause?if_busy=fail", ""), 409, "sandbox_busy")
	list := read[apiv1.List[apiv1.Sandbox]](t, request(t, s, "GET", "/v1/sandboxes?state=paused,pausing,resuming", ""), 200)
	if len(list.Items) != 0 {
		t.Errorf("%+v", list.Items)
	}
}

// TestStatesOfTheDescription: the description of the API names the states of the table, and no others.
func TestStatesOfTheDescription(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	var spec struct {
		Components struct {
			Schemas map[string]struct {
				Properties map[string]struct{ Enum []string }
			}
		}
	}
	if err := json.Unmarshal(request(t, s, "GET", "/openapi.json", "").body, &spec); err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, state := range sandbox.States() {
		want = append(want, string(state))
	}
	if got := spec.Components.Schemas["Sandbox"].Properties["state"].Enum; strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("states %v, want %v", got, want)
	}
}
