package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
)

// stateOf answers GET /v1/sandboxes/{id} with states of a list, one after the other; the last one stays.
type stateOf struct {
	next   http.RoundTripper
	mu     sync.Mutex
	states []string
	asked  int
}

func (s *stateOf) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := s.next.RoundTrip(r)
	if err != nil || r.Method != http.MethodGet || !strings.HasPrefix(r.URL.Path, "/v1/sandboxes/") {
		return resp, err
	}
	defer resp.Body.Close()
	var box map[string]any
	if err := json.NewDecoder(resp.Body).Decode(&box); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	box["state"] = s.states[0]
	s.states = s.states[min(1, len(s.states)-1):]
	body, err := json.Marshal(box)
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	resp.Header.Del("Content-Length")
	return resp, err
}

// pausedAttach attaches to a script in a sandbox whose state goes through a list.
func pausedAttach(t *testing.T, ctx context.Context, s *script, states []string, opts client.AttachOptions) (*client.Attachment, *stateOf, error) {
	t.Helper()
	_, c, _ := box(t)
	made, err := c.CreateCommand(t.Context(), "box", apiv1.CreateCommand{Argv: []string{"trap"}, Start: true})
	if err != nil {
		t.Fatal(err)
	}
	api := &stateOf{next: http.DefaultTransport, states: states}
	c.HTTPClient = &http.Client{Transport: api}
	s.queries = make(chan string, len(s.connections))
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	opts.Token = &apiv1.Attach{URL: "ws" + strings.TrimPrefix(server.URL, "http"), Token: "x"}
	a, err := c.Attach(ctx, made.ID, opts)
	return a, api, err
}

// TestAttachOverAPause: the attachment waits, says so once for each pause, and goes on from its offsets.
func TestAttachOverAPause(t *testing.T) {
	t.Parallel()
	s := &script{connections: [][]any{
		{started(0, 0, 0), stdoutFrame("abc"), apiv1.CloseStopped},
		{refused}, // the record was ahead
		{started(3, 0, 0), stdoutFrame("def"), 1012},
		{refused}, // it was paused while the connection was broken
		{started(6, 0, 0), stdoutFrame("ghi"), exitZero, 4000},
	}}
	var said []string
	out := newBuffer()
	a, api, err := pausedAttach(t, t.Context(), s, []string{"pausing", "paused", "resuming", "running", "paused", "running", "paused", "running"},
		client.AttachOptions{Stdout: out, OnPaused: func(reason string) error { said = append(said, reason); return nil },
			OnResumed: func() { said = append(said, "goes on") }})
	if err != nil {
		t.Fatal(err)
	}
	if code := exitCode(t, a); code != 0 || out.String() != "abcdefghi" {
		t.Errorf("%d %q", code, out)
	}
	if got := fmt.Sprint(said); got != "[because goes on paused goes on]" {
		t.Errorf("said %s", got)
	}
	if api.asked != 8 {
		t.Errorf("asked for the state %d times", api.asked)
	}
	close(s.queries)
	var offsets []string
	for q := range s.queries {
		offsets = append(offsets, strings.TrimPrefix(q, "stderr_offset=0&stdout_offset="))
	}
	if got := fmt.Sprint(offsets); got != "[0 3 3 6 6]" {
		t.Errorf("attached at %s", got)
	}
}

func TestAttachNeedNotWait(t *testing.T) {
	t.Parallel()
	s := &script{connections: [][]any{{started(0, 0, 0), apiv1.CloseStopped}}}
	a, _, err := pausedAttach(t, t.Context(), s, []string{"paused"}, client.AttachOptions{OnPaused: func(string) error { return client.ErrPaused }})
	if err != nil {
		t.Fatal(err)
	}
	if exit, err := a.Wait(); exit != nil || !errors.Is(err, client.ErrPaused) {
		t.Errorf("%+v, %v", exit, err)
	}
	s = &script{connections: [][]any{{refused}}}
	if _, _, err = pausedAttach(t, t.Context(), s, []string{"paused"}, client.AttachOptions{}); client.Code(err) != "invalid_state" {
		t.Errorf("a first attach to a paused sandbox: %v", err)
	}
}

// TestAttachLeavesAPause: the end of the context ends the waiting too.
func TestAttachLeavesAPause(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	left := errors.New("left")
	s := &script{connections: [][]any{{started(0, 0, 0), apiv1.CloseStopped}}}
	a, _, err := pausedAttach(t, ctx, s, []string{"paused"}, client.AttachOptions{OnPaused: func(string) error {
		go cancel(left)
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	if exit, err := a.Wait(); exit != nil || !errors.Is(err, left) {
		t.Errorf("%+v, %v", exit, err)
	}
}

// TestAttachToOneThatFailsInAPause ends with what the record says.
func TestAttachToOneThatFailsInAPause(t *testing.T) {
	t.Parallel()
	s := &script{connections: [][]any{{started(0, 0, 0), apiv1.CloseStopped}, {started(0, 0, 0), apiv1.CloseLost}}}
	a, _, err := pausedAttach(t, t.Context(), s, []string{"paused", "failed"}, client.AttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if exit, err := a.Wait(); exit != nil || err == nil || !strings.Contains(err.Error(), "because") {
		t.Errorf("%+v, %v", exit, err)
	}
}
