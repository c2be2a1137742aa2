package httpapi_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/space-sandbox/space/internal/httpapi/httpapitest"
)

func TestImportByJSON(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	a := request(t, s, "POST", "/v1/templates?wait=5", `{"name":"team/app:v1","image":"hub.test/app:1"}`)
	if a.StatusCode != 200 || !strings.Contains(string(a.body), `"template":{"name":"team/app","tags":["v1"]`) || !strings.Contains(string(a.body), `"type":"template"`) {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	if a := request(t, s, "POST", "/v1/templates", `{"name":"slow","image":"`+httpapitest.ImageSlow+`"}`); a.StatusCode != 202 || a.Header.Get("Location") == "" || strings.Contains(string(a.body), `"template":{`) {
		t.Errorf("accepted: %d %s", a.StatusCode, a.body)
	}
	if a := request(t, s, "GET", "/v1/templates/team%2Fapp:v1", ""); a.StatusCode != 200 || !strings.Contains(string(a.body), `"start_command":null,"ready_command":null`) {
		t.Errorf("show: %d %s", a.StatusCode, a.body)
	}
	if a := request(t, s, "DELETE", "/v1/templates/team/app:v1", ""); a.StatusCode != 204 || len(a.body) != 0 {
		t.Errorf("delete: %d %s", a.StatusCode, a.body)
	}
	problem(t, request(t, s, "GET", "/v1/templates/team/app:v1", ""), 404, "template_not_found")
	problem(t, request(t, s, "DELETE", "/v1/templates/mini", ""), 409, "template_in_use")
}

func TestImportRefusals(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	problem(t, request(t, s, "POST", "/v1/templates?wait=5", `{"name":"x","image":"`+httpapitest.ImageBroken+`"}`), 400, "image_invalid")
	problem(t, request(t, s, "POST", "/v1/templates", `{"name":"x"}`), 400, "invalid_argument")
	problem(t, request(t, s, "POST", "/v1/templates", `{"name":"x","image":""}`), 400, "invalid_argument")
	problem(t, request(t, s, "POST", "/v1/templates", `{"name":1,"image":"y"}`), 400, "invalid_argument")
	problem(t, request(t, s, "POST", "/v1/templates", `{"name":"x","image":"y","path":"/etc"}`), 400, "unknown_field")
	problem(t, request(t, s, "POST", "/v1/templates", `{"name":"../x","image":"y"}`), 400, "invalid_argument")
	problem(t, request(t, s, "POST", "/v1/templates?name=x", `{"name":"x","image":"y"}`), 400, "invalid_argument")
	problem(t, request(t, s, "POST", "/v1/templates?wait=long", `{"name":"x","image":"y"}`), 400, "invalid_argument")
	problem(t, request(t, s, "POST", "/v1/templates", ``), 400, "malformed_body")
	problem(t, request(t, s, "DELETE", "/v1/templates/", ""), 404, "not_found")
}

// An archive is larger than any JSON body may be, and is named in the query.
func TestImportByArchive(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	send := func(query string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/v1/templates"+query, strings.NewReader(strings.Repeat("x", 3<<20)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/x-tar")
		req.Header.Set("Authorization", "Bearer "+httpapitest.AdminKey)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(body)
	}
	if code, body := send("?name=app&wait=5"); code != 200 || !strings.Contains(body, `"name":"app"`) {
		t.Errorf("%d %s", code, body)
	}
	if code, body := send(""); code != 400 || !strings.Contains(body, "is required with an archive") {
		t.Errorf("without a name: %d %s", code, body)
	}
}
