package httpapi_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/httpapi/httpapitest"
	"github.com/space-sandbox/space/internal/sandbox"
)

// follow asks for events and returns the body, unread.
func follow(t *testing.T, s *httpapitest.Server, query string, headers ...string) *bufio.Reader {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", s.URL+"/v1/events"+query, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-API-Key", httpapitest.DeveloperKey)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	if got := resp.Header.Get("Content-Type"); resp.StatusCode != 200 || got != "text/event-stream" {
		t.Fatalf("status %d, type %q", resp.StatusCode, got)
	}
	return bufio.NewReader(resp.Body)
}

// wantEvents reads n server-sent events and compares them with want.
func wantEvents(t *testing.T, r io.Reader, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(r, got); err != nil || string(got) != want {
		t.Errorf("got %q, %v\nwant %q", got[:n], err, want)
	}
}

func TestEventStream(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	one, two := create(t, s, `{"template":"mini","name":"one"}`), sandbox.NewID()
	s.Fake.AddEvent(control.Event{Type: control.EventTemplate, Object: []byte(`{"name":"x"}`)})
	all := follow(t, s, "")
	wantEvents(t, all, "id: 1\n\n") // the present
	s.Fake.AddEvent(control.Event{Type: control.EventSandbox, SandboxID: sandbox.ID(one.ID), OperationID: "op_1", Object: []byte(`{"a":"<ü>"}`)})
	s.Fake.AddEvent(control.Event{Type: control.EventLease, SandboxID: two, Object: []byte(`{}`)})
	second := `id: 2` + "\n" + `event: sandbox` + "\n" + `data: {"seq":2,"time":"2026-01-02T03:04:10Z","type":"sandbox","sandbox_id":"` + one.ID +
		`","operation_id":"op_1","object":{"a":"\u003cü\u003e"}}` + "\n\n"
	third := `id: 3` + "\n" + `event: lease` + "\n" + `data: {"seq":3,"time":"2026-01-02T03:04:11Z","type":"lease","sandbox_id":"` + string(two) + `","object":{}}` + "\n\n"
	wantEvents(t, all, second+third)
	wantEvents(t, follow(t, s, "", "Last-Event-ID: 1"), second+third)
	wantEvents(t, follow(t, s, "?last_event_id=2", "Last-Event-ID: 1"), third)
	wantEvents(t, follow(t, s, "?last_event_id=0&sandbox_id=one"), second)
	wantEvents(t, follow(t, s, "?last_event_id=0&sandbox_id="+string(two)), third)
	wantEvents(t, follow(t, s, "?last_event_id=0&type=lease,command"), third)
	wantEvents(t, follow(t, s, "?last_event_id=3"), "id: 3\n\n")
	s.Fake.DropEvents(2)
	wantEvents(t, follow(t, s, "?last_event_id=1"), "id: 2\nevent: gap\ndata: {\"oldest\":3}\n\n"+third)
	wantEvents(t, follow(t, s, "?last_event_id=99"), "id: 2\nevent: gap\ndata: {\"oldest\":3}\n\n"+third)
	wantEvents(t, follow(t, s, "?last_event_id=2"), third)
	s.Fake.DropStreams()
	if rest, err := io.ReadAll(all); err != nil || len(rest) > 0 {
		t.Errorf("after the end: %q %v", rest, err)
	}
}

func TestEventQueries(t *testing.T) {
	t.Parallel()
	s := httpapitest.Serve(t)
	for query, want := range map[string]struct {
		status int
		code   string
	}{
		"?type=gap": {400, "invalid_argument"}, "?last_event_id=-1": {400, "invalid_argument"}, "?last_event_id=x": {400, "invalid_argument"},
		"?since=3": {400, "invalid_argument"}, "?sandbox_id=nobody": {404, "not_found"}, "?sandbox_id=NOT": {404, "not_found"},
	} {
		problem(t, request(t, s, "GET", "/v1/events"+query, ""), want.status, want.code)
	}
	if a := request(t, s, "HEAD", "/v1/events?type=&last_event_id=", ""); a.StatusCode != 200 {
		t.Errorf("nothing asked for: status %d", a.StatusCode)
	}
	if a := request(t, s, "HEAD", "/v1/events", "", "Last-Event-ID: now"); a.StatusCode != 400 {
		t.Errorf("a bad header: status %d", a.StatusCode)
	}
	if a := requestAs(t, s, "", "GET", "/v1/events", ""); a.StatusCode != 401 {
		t.Errorf("without a key: status %d", a.StatusCode)
	}
}

// A stream without events says every 15 seconds that it is there and how far it is; one whose client does not read ends
// after a minute.
func TestSilentEventStreams(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := httpapitest.NewFake()
		conn := bubble(t, f)
		fmt.Fprint(conn, "GET /v1/events?type=lease HTTP/1.1\r\nHost: x\r\n"+keyHeader+"\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		wantEvents(t, resp.Body, "id: 0\n\n")
		start := time.Now()
		for n := range 3 {
			f.AddEvent(control.Event{Type: control.EventSandbox})
			wantEvents(t, resp.Body, fmt.Sprintf("id: %d\n\n", n+1))
		}
		if took := time.Since(start); took != 45*time.Second {
			t.Errorf("three heartbeats took %v", took)
		}
		time.Sleep(15*time.Second + time.Minute + time.Second) // nobody reads
		synctest.Wait()
		if _, err := io.ReadAll(resp.Body); err == nil {
			t.Error("the stream did not break")
		}
	})
}
