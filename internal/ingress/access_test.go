package ingress

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/sandbox"
)

// ask makes a plain request and returns the status and, of an error form, its code.
func (p *plane) ask(t *testing.T, method, path string, header http.Header) (*http.Response, apiv1.Problem) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, p.server.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, values := range header {
		req.Header[name] = values
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	var form apiv1.Problem
	if resp.StatusCode >= 300 {
		if got := resp.Header.Get("Content-Type"); got != "application/problem+json" {
			t.Errorf("%s %s: content type %q", method, path, got)
		}
		if body, err := io.ReadAll(resp.Body); err != nil || method != http.MethodHead && json.Unmarshal(body, &form) != nil {
			t.Errorf("%s %s: body %q, %v", method, path, body, err)
		}
	}
	return resp, form
}

func TestTokensAreChecked(t *testing.T) {
	t.Parallel()
	p := newPlane(t, Limits{})
	good := p.token(t, nil)
	other, _, err := auth.NewSigner().SignAttach(p.claims)
	if err != nil {
		t.Fatal(err)
	}
	path := "/v1/commands/" + string(p.claims.CommandID) + "/output"
	bearer := func(token string) http.Header { return http.Header{"Authorization": {"Bearer " + token}} }
	for name, row := range map[string]struct {
		path   string
		header http.Header
		status int
		code   string
	}{
		"header":      {path, bearer(good), 200, ""},
		"query":       {path + "?token=" + good, nil, 200, ""},
		"subprotocol": {path, http.Header{"Sec-Websocket-Protocol": {"space.attach.v1, bearer." + good}}, 200, ""},
		"same twice":  {path + "?token=" + good, bearer(good), 200, ""},
		"two":         {path + "?token=" + good, bearer(other), 400, "invalid_argument"},
		"none":        {path, nil, 401, "unauthenticated"},
		"basic":       {path, http.Header{"Authorization": {"Basic " + good}}, 401, "unauthenticated"},
		"empty":       {path, bearer(""), 401, "unauthenticated"},
		"damaged":     {path, bearer(good[:len(good)-4] + "AAAA"), 401, "unauthenticated"},
		"foreign key": {path, bearer(other), 401, "unauthenticated"},
		"expired":     {path, bearer(p.token(t, func(c *auth.AttachClaims) { c.ExpiresAt = time.Now().Add(-time.Second) })), 401, "unauthenticated"},
		"other cmd":   {path, bearer(p.token(t, func(c *auth.AttachClaims) { c.CommandID = sandbox.NewCommandID() })), 403, "forbidden"},
		"no id":       {"/v1/commands/cmd_x/output", bearer(good), 404, "not_found"},
	} {
		t.Run(name, func(t *testing.T) {
			resp, form := p.ask(t, "GET", row.path, row.header)
			if resp.StatusCode != row.status || form.Code != row.code {
				t.Errorf("status %d, form %+v", resp.StatusCode, form)
			}
		})
	}
}

// TestTokenIsNeverLogged uses every way a token can come in, in requests that succeed and that fail, at debug level.
func TestTokenIsNeverLogged(t *testing.T) {
	t.Parallel()
	p := newPlane(t, Limits{})
	token := p.token(t, nil)
	signature := token[strings.LastIndex(token, ".")+1:]
	cmd := string(p.claims.CommandID)
	for _, path := range []string{
		"/v1/commands/" + cmd + "/output?token=" + token,
		"/v1/commands/" + cmd + "/output?nope=1&token=" + token,
		"/v1/commands/" + cmd + "/output?token=" + token + "%zz",
		"/v1/commands/" + cmd + "/output?token=" + token + "x",
		"/v1/commands/" + string(sandbox.NewCommandID()) + "/output?token=" + token,
		"/v1/attach/" + cmd + "?token=" + token,
		"/v1/elsewhere?token=" + token,
		"/v1/attach/" + cmd + "?" + token + "=1",
	} {
		_, form := p.ask(t, "GET", path, http.Header{"Sec-Websocket-Protocol": {"bearer." + token}, "Authorization": {"Bearer " + token}})
		if body, err := json.Marshal(form); err != nil || strings.Contains(string(body), signature) {
			t.Errorf("%v: the answer repeats the token: %s", err, body)
		}
	}
	conn, resp, err := websocket.Dial(t.Context(), p.attachURL("?token="+token), &websocket.DialOptions{
		Subprotocols: []string{"space.attach.v1", "bearer." + token}})
	if err != nil {
		t.Fatal(err)
	}
	if got := resp.Header.Get("Sec-WebSocket-Protocol"); got != "space.attach.v1" {
		t.Errorf("the answer chose subprotocol %q", got)
	}
	conn.CloseNow()
	p.guest.await(t, "the stream ends", func() bool { return p.guest.streams == 0 })
	p.server.Close()
	log := p.log.String()
	if !strings.Contains(log, cmd) {
		t.Fatalf("the log is empty: %q", log)
	}
	if strings.Contains(log, signature) {
		t.Errorf("the log has the token:\n%s", log)
	}
}

func TestRequestsThatAreRefused(t *testing.T) {
	t.Parallel()
	p := newPlane(t, Limits{})
	cmd := string(p.claims.CommandID)
	upgrade := func(change func(http.Header)) http.Header {
		h := http.Header{"Connection": {"keep-alive, Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"},
			"Sec-Websocket-Key": {"AAAAAAAAAAAAAAAAAAAAAA=="}}
		change(h)
		return h
	}
	for name, row := range map[string]struct {
		method, path string
		header       http.Header
		status       int
		code, field  string
	}{
		"unknown route":      {"GET", "/v1/ports/3000", nil, 404, "not_found", ""},
		"root":               {"GET", "/", nil, 404, "not_found", ""},
		"unclean path":       {"GET", "//v1/attach/" + cmd, nil, 404, "not_found", ""},
		"dots":               {"GET", "/v1/commands/../" + cmd + "/output", nil, 404, "not_found", ""},
		"head":               {"HEAD", "/v1/commands/" + cmd + "/output?follow=true", nil, 405, "", ""},
		"post":               {"POST", "/v1/attach/" + cmd, nil, 405, "method_not_allowed", ""},
		"unknown parameter":  {"GET", "/v1/commands/" + cmd + "/output?since=1", nil, 400, "invalid_argument", "since"},
		"later parameter":    {"GET", "/v1/attach/" + cmd + "?follow=true", upgrade(func(http.Header) {}), 400, "invalid_argument", "follow"},
		"bad takeover":       {"GET", "/v1/attach/" + cmd + "?takeover=yes", upgrade(func(http.Header) {}), 400, "invalid_argument", "takeover"},
		"twice":              {"GET", "/v1/commands/" + cmd + "/output?offset=1&offset=2", nil, 400, "invalid_argument", "offset"},
		"bad stream":         {"GET", "/v1/commands/" + cmd + "/output?stream=tty", nil, 400, "invalid_argument", "stream"},
		"bad offset":         {"GET", "/v1/commands/" + cmd + "/output?offset=-1", nil, 400, "invalid_argument", "offset"},
		"empty offset":       {"GET", "/v1/commands/" + cmd + "/output?offset=", nil, 400, "invalid_argument", "offset"},
		"bad follow":         {"GET", "/v1/commands/" + cmd + "/output?follow=1", nil, 400, "invalid_argument", "follow"},
		"malformed query":    {"GET", "/v1/commands/" + cmd + "/output?offset=%zz", nil, 400, "invalid_argument", ""},
		"no upgrade":         {"GET", "/v1/attach/" + cmd, nil, 400, "invalid_argument", ""},
		"bad ws offset":      {"GET", "/v1/attach/" + cmd + "?stdout_offset=x", upgrade(func(http.Header) {}), 400, "invalid_argument", "stdout_offset"},
		"ws version":         {"GET", "/v1/attach/" + cmd, upgrade(func(h http.Header) { h.Set("Sec-WebSocket-Version", "8") }), 400, "invalid_argument", ""},
		"ws key":             {"GET", "/v1/attach/" + cmd, upgrade(func(h http.Header) { h.Set("Sec-WebSocket-Key", "AAAA") }), 400, "invalid_argument", ""},
		"other subprotocols": {"GET", "/v1/attach/" + cmd, upgrade(func(h http.Header) { h.Set("Sec-WebSocket-Protocol", "space.attach.v9") }), 400, "invalid_argument", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if row.header == nil {
				row.header = http.Header{}
			}
			row.header.Set("Authorization", "Bearer "+p.token(t, nil))
			resp, form := p.ask(t, row.method, row.path, row.header)
			field := ""
			if len(form.Fields) > 0 {
				field = form.Fields[0].Field
			}
			if resp.StatusCode != row.status || form.Code != row.code || field != row.field {
				t.Errorf("status %d, form %+v", resp.StatusCode, form)
			}
		})
	}
	if p.guest.attaches != 0 {
		t.Errorf("%d refused requests reached the agent", p.guest.attaches)
	}
}

// TestFaultOfOursIsAnAnswer: a panic is neither HTML nor a closed socket.
func TestFaultOfOursIsAnAnswer(t *testing.T) {
	t.Parallel()
	p := newPlane(t, Limits{})
	p.faulty = true
	resp, form := p.ask(t, "GET", "/v1/commands/"+string(p.claims.CommandID)+"/output", http.Header{"Authorization": {"Bearer " + p.token(t, nil)}})
	if resp.StatusCode != 500 || form.Code != "internal" {
		t.Errorf("status %d, form %+v", resp.StatusCode, form)
	}
	if !strings.Contains(p.log.String(), "panic in the data plane") {
		t.Error("the log has no trace of it")
	}
}

func TestOldHTTPIsRefused(t *testing.T) {
	t.Parallel()
	p := newPlane(t, Limits{})
	conn, err := net.Dial("tcp", p.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /v1/commands/"+string(p.claims.CommandID)+"/output HTTP/1.0\r\nAuthorization: Bearer "+p.token(t, nil)+"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if answer, err := io.ReadAll(conn); err != nil || !strings.Contains(string(answer), "400 Bad Request") {
		t.Errorf("got %q, %v", answer, err)
	}
}

func TestAnyOriginMayAttach(t *testing.T) {
	t.Parallel()
	p := newPlane(t, Limits{})
	conn, _, err := websocket.Dial(t.Context(), p.attachURL(""), &websocket.DialOptions{HTTPHeader: http.Header{
		"Origin": {"https://elsewhere.example"}, "Authorization": {"Bearer " + p.token(t, nil)}}})
	if err != nil {
		t.Fatal(err)
	}
	conn.CloseNow()
}

func TestAttachmentsAreCounted(t *testing.T) {
	t.Parallel()
	p := newPlane(t, Limits{PerSandbox: 2})
	a := p.attach(t, "")
	p.attach(t, "")
	path := "/v1/commands/" + string(p.claims.CommandID) + "/output"
	header := http.Header{"Authorization": {"Bearer " + p.token(t, nil)}}
	resp, form := p.ask(t, "GET", path, header)
	if resp.StatusCode != 429 || form.Code != "capacity_exhausted" || resp.Header.Get("Retry-After") == "" {
		t.Errorf("status %d, form %+v", resp.StatusCode, form)
	}
	a.conn.CloseNow()
	p.guest.await(t, "one ends", func() bool { return p.guest.streams == 1 })
	deadline := time.Now().Add(10 * time.Second)
	for resp.StatusCode != 200 && time.Now().Before(deadline) { // the slot is given back just after the stream's end
		resp, _ = p.ask(t, "GET", path, header)
	}
	if resp.StatusCode != 200 {
		t.Errorf("status %d after one has ended", resp.StatusCode)
	}
}

func TestTotalIsBoundedAcrossSandboxes(t *testing.T) {
	t.Parallel()
	s := newSlots(2, 3)
	a, b := sandbox.NewID(), sandbox.NewID()
	var release func()
	for i, id := range []sandbox.ID{a, a, b} {
		r, err := s.take(id)
		if err != nil {
			t.Fatalf("slot %d: %v", i, err)
		}
		release = r
	}
	if _, err := s.take(b); sandbox.CodeOf(err) != sandbox.CodeCapacity {
		t.Errorf("a fourth slot: %v", err)
	}
	release()
	if _, err := s.take(b); err != nil {
		t.Errorf("after a release: %v", err)
	}
}
