package httpapi_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/httpapi/httpapitest"
)

// answer is a response with its body read.
type answer struct {
	*http.Response
	body []byte
}

// request sends one; headers are "Name: value". A body of "" is none.
func request(t *testing.T, s *httpapitest.Server, method, path, body string, headers ...string) answer {
	t.Helper()
	return requestAs(t, s, httpapitest.AdminKey, method, path, body, headers...)
}

func requestAs(t *testing.T, s *httpapitest.Server, key, method, path, body string, headers ...string) answer {
	t.Helper()
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, r)
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultTransport.RoundTrip(req) // no redirects
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp, data}
}

// read decodes an answer with the wanted status and refuses fields that the type does not have.
func read[T any](t *testing.T, a answer, status int) T {
	t.Helper()
	var v T
	if a.StatusCode != status {
		t.Fatalf("status %d, want %d: %s", a.StatusCode, status, a.body)
	}
	dec := json.NewDecoder(strings.NewReader(string(a.body)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("%v: %s", err, a.body)
	}
	return v
}

// problem checks that an answer is the error form with this code, and returns it.
func problem(t *testing.T, a answer, status int, code string) apiv1.Problem {
	t.Helper()
	if got := a.Header.Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("content type %q: %s", got, a.body)
	}
	p := read[apiv1.Problem](t, a, status)
	if p.Code != code || p.Status != status || p.Message == "" {
		t.Errorf("%+v, want code %s", p, code)
	}
	return p
}

// create makes a running sandbox.
func create(t *testing.T, s *httpapitest.Server, body string) apiv1.Sandbox {
	t.Helper()
	return read[apiv1.Lifecycle](t, request(t, s, "POST", "/v1/sandboxes?wait=10", body), 200).Sandbox
}

// sandboxFilter selects everything that is live.
func sandboxFilter() control.SandboxFilter {
	return control.SandboxFilter{PageRequest: control.PageRequest{Limit: 100}}
}
