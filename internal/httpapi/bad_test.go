package httpapi_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/httpapi/httpapitest"
)

// Every bad body is refused with the contract's error, names its field, and makes nothing.
func TestBadBodies(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	create(t, s, `{"template":"mini","name":"box"}`)
	const sandboxes, commands, exec = "/v1/sandboxes", "/v1/sandboxes/box/commands", "/v1/sandboxes/box/exec"
	for name, row := range map[string]struct {
		path, body string
		status     int
		code       string
		fields     string // comma-separated
	}{
		"unknown template":       {sandboxes, `{"template":"nope"}`, 404, "template_not_found", ""},
		"no template":            {sandboxes, `{}`, 400, "invalid_argument", "template"},
		"empty template":         {sandboxes, `{"template":""}`, 400, "invalid_argument", "template"},
		"null template":          {sandboxes, `{"template":null}`, 400, "invalid_argument", "template"},
		"template is a number":   {sandboxes, `{"template":5}`, 400, "invalid_argument", "template"},
		"0 vcpus":                {sandboxes, `{"template":"mini","vcpus":0}`, 400, "invalid_argument", "vcpus"},
		"10 000 vcpus":           {sandboxes, `{"template":"mini","vcpus":10000}`, 400, "invalid_argument", "vcpus"},
		"vcpus is text":          {sandboxes, `{"template":"mini","vcpus":"2"}`, 400, "invalid_argument", "vcpus"},
		"vcpus is half":          {sandboxes, `{"template":"mini","vcpus":1.5}`, 400, "invalid_argument", "vcpus"},
		"vcpus is huge":          {sandboxes, `{"template":"mini","vcpus":1e400}`, 400, "invalid_argument", "vcpus"},
		"memory is huge":         {sandboxes, `{"template":"mini","memory_mib":99999999999999999999}`, 400, "invalid_argument", "memory_mib"},
		"negative disk":          {sandboxes, `{"template":"mini","disk_mib":-1}`, 400, "invalid_argument", "disk_mib"},
		"name not valid":         {sandboxes, `{"template":"mini","name":"Web_1"}`, 400, "invalid_argument", "name"},
		"name like an id":        {sandboxes, `{"template":"mini","name":"abcdefghijklmnopqrst"}`, 400, "invalid_argument", "name"},
		"name too long":          {sandboxes, `{"template":"mini","name":"` + strings.Repeat("a", 64) + `"}`, 400, "invalid_argument", "name"},
		"unknown driver":         {sandboxes, `{"template":"mini","driver":"xen"}`, 400, "invalid_argument", "driver"},
		"metadata is a list":     {sandboxes, `{"template":"mini","metadata":["a"]}`, 400, "invalid_argument", "metadata"},
		"metadata value":         {sandboxes, `{"template":"mini","metadata":{"a":1}}`, 400, "invalid_argument", "metadata.a"},
		"env name with =":        {sandboxes, `{"template":"mini","env":{"A=B":"c"}}`, 400, "invalid_argument", "env.A=B"},
		"env value with NUL":     {sandboxes, `{"template":"mini","env":{"A":"b\u0000"}}`, 400, "invalid_argument", "env.A"},
		"lease that suspends":    {sandboxes, `{"template":"mini","lease":{"ttl_seconds":5,"on_expiry":"suspend"}}`, 400, "invalid_argument", "lease.on_expiry"},
		"lease of no time":       {sandboxes, `{"template":"mini","lease":{"ttl_seconds":0}}`, 400, "invalid_argument", "lease.ttl_seconds"},
		"lease for ever":         {sandboxes, `{"template":"mini","lease":{"ttl_seconds":1e300}}`, 400, "invalid_argument", "lease.ttl_seconds"},
		"lease without a time":   {sandboxes, `{"template":"mini","lease":{}}`, 400, "invalid_argument", "lease.ttl_seconds"},
		"lease that extends":     {sandboxes, `{"template":"mini","lease":{"ttl_seconds":5,"mode":"extend"}}`, 400, "unknown_field", "lease.mode"},
		"from_checkpoint":        {sandboxes, `{"from_checkpoint":"cp_1"}`, 400, "unknown_field", "from_checkpoint,template"},
		"policy and secrets":     {sandboxes, `{"template":"mini","secrets":[],"policy":"p","cold":true}`, 400, "unknown_field", "cold,policy,secrets"},
		"another case":           {sandboxes, `{"template":"mini","VCPUs":1}`, 400, "unknown_field", "VCPUs"},
		"duplicate key":          {sandboxes, `{"template":"mini","template":"slow"}`, 400, "malformed_body", ""},
		"duplicate key by case":  {sandboxes, `{"template":"mini","Template":"slow"}`, 400, "unknown_field", "Template"},
		"duplicate key inside":   {sandboxes, `{"template":"mini","env":{"A":"1","A":"2"}}`, 400, "malformed_body", ""},
		"not JSON":               {sandboxes, `template: mini`, 400, "malformed_body", ""},
		"cut off":                {sandboxes, `{"template":"mini"`, 400, "malformed_body", ""},
		"trailing data":          {sandboxes, `{"template":"mini"} {}`, 400, "malformed_body", ""},
		"trailing comma":         {sandboxes, `{"template":"mini",}`, 400, "malformed_body", ""},
		"a list":                 {sandboxes, `[{"template":"mini"}]`, 400, "malformed_body", ""},
		"null":                   {sandboxes, `null`, 400, "malformed_body", ""},
		"only spaces":            {sandboxes, `  `, 400, "malformed_body", ""},
		"no body":                {sandboxes, ``, 400, "malformed_body", ""},
		"NaN":                    {sandboxes, `{"template":"mini","vcpus":NaN}`, 400, "malformed_body", ""},
		"invalid UTF-8 value":    {sandboxes, "{\"template\":\"mini\xff\"}", 400, "malformed_body", ""},
		"invalid UTF-8 key":      {sandboxes, "{\"template\":\"mini\",\"env\":{\"\xc0\xaf\":\"\"}}", 400, "malformed_body", ""},
		"invalid UTF-8 overlong": {exec, "{\"argv\":[\"echo\",\"\xed\xa0\x80\"]}", 400, "malformed_body", ""},
		"lone surrogate":         {exec, `{"argv":["echo","\ud800"]}`, 400, "malformed_body", ""},
		"low surrogate first":    {exec, `{"argv":["echo","\udc00\ud800"]}`, 400, "malformed_body", ""},
		"surrogate then text":    {exec, `{"argv":["echo","\ud800\\udc00"]}`, 400, "malformed_body", ""},
		"nested too deep":        {sandboxes, `{"template":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `}`, 400, "malformed_body", ""},
		"2 MiB":                  {sandboxes, `{"template":"` + strings.Repeat("x", 2<<20) + `"}`, 413, "body_too_large", ""},
		"no argv":                {commands, `{"stdin":true}`, 400, "invalid_argument", "argv"},
		"null argv":              {commands, `{"argv":null}`, 400, "invalid_argument", "argv"},
		"empty argv":             {commands, `{"argv":[]}`, 400, "invalid_argument", "argv"},
		"empty program":          {commands, `{"argv":[""]}`, 400, "invalid_argument", "argv[0]"},
		"argv is text":           {commands, `{"argv":"ls -l"}`, 400, "invalid_argument", "argv"},
		"argv has a number":      {commands, `{"argv":["ls",5]}`, 400, "invalid_argument", "argv[1]"},
		"argv has null":          {commands, `{"argv":["ls",null]}`, 400, "invalid_argument", "argv[1]"},
		"argv has NUL":           {exec, `{"argv":["ls","a\u0000b"]}`, 400, "invalid_argument", "argv[1]"},
		"cwd has NUL":            {exec, `{"argv":["ls"],"cwd":"/\u0000"}`, 400, "invalid_argument", "cwd"},
		"no rows":                {commands, `{"argv":["ls"],"pty":{"cols":80}}`, 400, "invalid_argument", "pty.rows"},
		"no columns":             {exec, `{"argv":["ls"],"pty":{"cols":0,"rows":24}}`, 400, "invalid_argument", "pty.cols"},
		"too many rows":          {commands, `{"argv":["ls"],"pty":{"cols":80,"rows":65536}}`, 400, "invalid_argument", "pty.rows"},
		"record is text":         {commands, `{"argv":["ls"],"record":"yes"}`, 400, "invalid_argument", "record"},
		"stdin is text":          {commands, `{"argv":["ls"],"stdin":"yes"}`, 400, "invalid_argument", "stdin"},
		"negative timeout":       {commands, `{"argv":["ls"],"timeout_seconds":-1}`, 400, "invalid_argument", "timeout_seconds"},
		"stdin_b64 of commands":  {commands, `{"argv":["ls"],"stdin_b64":""}`, 400, "unknown_field", "stdin_b64"},
		"stdin_b64 not base64":   {exec, `{"argv":["cat"],"stdin_b64":"*"}`, 400, "invalid_argument", "stdin_b64"},
		"exec without start":     {exec, `{"argv":["cat"],"start":false}`, 400, "invalid_argument", "start"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := problem(t, request(t, s, "POST", row.path, row.body), row.status, row.code)
			var fields []string
			for _, f := range p.Fields {
				fields = append(fields, f.Field)
			}
			slices.Sort(fields)
			if got := strings.Join(fields, ","); got != row.fields {
				t.Errorf("fields %q, want %q (%+v)", got, row.fields, p)
			}
		})
	}
	t.Cleanup(func() { // after the parallel subtests
		page, err := s.ListSandboxes(t.Context(), sandboxFilter())
		if err != nil || len(page.Items) != 1 {
			t.Errorf("a refused request has made something: %v, %v", page.Items, err)
		}
	})
}

func TestGoodBodies(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	create(t, s, `{"template":"mini","name":"box"}`)
	for name, body := range map[string]string{
		"nulls are absent":  `{"argv":["echo"],"env":null,"cwd":null,"user":null,"stdin":null,"timeout_seconds":null,"tag":null}`,
		"surrogate pair":    `{"argv":["echo","\ud83d\ude00","\\ud800"]}`,
		"fraction timeout":  `{"argv":["echo"],"timeout_seconds":0.5}`,
		"whole as fraction": `{"argv":["echo"],"timeout_seconds":5.0}`,
		"white space":       "\n\t {\"argv\" : [\"echo\"]} \r\n",
	} {
		for _, contentType := range []string{"application/json", "application/json; charset=utf-8", "application/x-www-form-urlencoded"} {
			a := request(t, s, "POST", "/v1/sandboxes/box/exec", body, "Content-Type: "+contentType)
			if got := read[apiv1.ExecResult](t, a, 200); got.State != "exited" {
				t.Errorf("%s: %+v", name, got)
			}
		}
	}
}

func TestBadQueries(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	for path, field := range map[string]string{
		"/v1/sandboxes?lease=5":                          "lease",
		"/v1/sandboxes?Limit=5":                          "Limit",
		"/v1/sandboxes?limit=0":                          "limit",
		"/v1/sandboxes?limit=101":                        "limit",
		"/v1/sandboxes?limit=many":                       "limit",
		"/v1/sandboxes?limit=5&limit=6":                  "limit",
		"/v1/sandboxes?order=up":                         "order",
		"/v1/sandboxes?state=asleep":                     "state",
		"/v1/sandboxes?state=running,":                   "state",
		"/v1/sandboxes?created_after=yesterday":          "created_after",
		"/v1/sandboxes?count=maybe":                      "count",
		"/v1/sandboxes?metadata.=x":                      "metadata.",
		"/v1/sandboxes?template=%ff":                     "template",
		"/v1/sandboxes?a=%zz":                            "query",
		"/v1/sandboxes?a;b":                              "query",
		"/v1/operations?metadata.a=b":                    "metadata.a",
		"/v1/operations/op_aaaaaaaaaaaaaaaaaaaa?wait=-1": "wait",
		"/v1/templates/mini?x=1":                         "x",
		"/v1/node?x=1":                                   "x",
		"/v1/sandboxes/box/files":                        "path",
		"/v1/sandboxes/box/files?path=a&recursive=true":  "recursive",
		"/v1/sandboxes/box/files/stat":                   "path",
		"/v1/sandboxes/box/files/list?path=a&order=asc":  "order",
		"/v1/sandboxes/box/files/archive?path=a&path=b":  "path",
		"/v1/sandboxes/box/commands?state=paused":        "state",
		"/v1/sandboxes/box/commands?pid=0":               "pid",
	} {
		p := problem(t, request(t, s, "GET", path, ""), 400, "invalid_argument")
		if len(p.Fields) != 1 || p.Fields[0].Field != field {
			t.Errorf("%s: %+v", path, p)
		}
	}
}

func TestBadWaits(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	for _, wait := range []string{"301", "-1", "x", "1m", "NaN", "Inf", "1e9", "30ss"} {
		problem(t, request(t, s, "POST", "/v1/sandboxes?wait="+wait, `{"template":"mini"}`), 400, "invalid_argument")
		problem(t, request(t, s, "POST", "/v1/sandboxes", `{"template":"mini"}`, "Prefer: wait="+wait), 400, "invalid_argument")
	}
	problem(t, request(t, s, "POST", "/v1/sandboxes", `{"template":"mini"}`, "Prefer: wait="), 400, "invalid_argument")
	page, err := s.ListSandboxes(t.Context(), sandboxFilter())
	if err != nil || len(page.Items) > 0 {
		t.Errorf("a refused wait has made something: %v, %v", page.Items, err)
	}
}

// Not one byte sequence of a body is answered with anything but the error form or success.
func FuzzBody(f *testing.F) {
	for _, seed := range []string{`{"template":"mini"}`, `{"template":"\ud800"}`, `{"a":{"b":[1,2,{"c":null}]}}`, `{"vcpus":1e999}`, "\xff", `"`, `{"x":"\`} {
		f.Add(seed)
	}
	s := httpapitest.Serve(f)
	f.Fuzz(func(t *testing.T, body string) {
		a := request(t, s, "POST", "/v1/sandboxes", body)
		if a.StatusCode != 202 && a.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%d %s", a.StatusCode, a.body)
		}
		if a.StatusCode >= 500 {
			t.Errorf("%d %s", a.StatusCode, a.body)
		}
	})
}

func TestErrorNamesManyFields(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	p := problem(t, request(t, s, "POST", "/v1/sandboxes", `{"template":"mini","vcpus":0,"memory_mib":1,"disk_mib":"x"}`), 400, "invalid_argument")
	if got := fmt.Sprint(p.Fields); !strings.Contains(got, "vcpus") || !strings.Contains(got, "memory_mib") || !strings.Contains(got, "disk_mib") {
		t.Error(got)
	}
}
