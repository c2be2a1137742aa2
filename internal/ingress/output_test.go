package ingress

import (
	"io"
	"net/http"
	"strings"
	"testing"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

func (p *plane) output(t *testing.T, query string) *http.Response {
	t.Helper()
	resp, _ := p.ask(t, "GET", "/v1/commands/"+string(p.claims.CommandID)+"/output"+query, http.Header{"Authorization": {"Bearer " + p.token(t, nil)}})
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d", resp.StatusCode)
	}
	return resp
}

func TestOutputFollowsToTheEnd(t *testing.T) {
	t.Parallel()
	p := newPlane(t, Limits{})
	resp := p.output(t, "?follow=true") // answers before there is a byte
	if s := p.guest.state(); s.GetState() != agentv1.ProcessState_PROCESS_STATE_RUNNING {
		t.Errorf("the process is %v", s.GetState())
	}
	for _, text := range []string{"live ", "lines "} {
		p.guest.print(stdout, text)
		got := make([]byte, len(text))
		if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != text {
			t.Fatalf("read %q, %v", got, err)
		}
	}
	p.guest.print(stderr, "not here")
	p.guest.print(stdout, "last")
	p.guest.exit(1)
	rest, err := io.ReadAll(resp.Body)
	if err != nil || string(rest) != "last" {
		t.Errorf("rest %q, %v", rest, err)
	}
}

func TestOutputWithoutFollowEndsWhereItIs(t *testing.T) {
	t.Parallel()
	p := newPlane(t, Limits{})
	if body, err := io.ReadAll(p.output(t, "").Body); err != nil || len(body) != 0 {
		t.Errorf("a created process gave %q, %v", body, err)
	}
	if s := p.guest.state(); s.GetState() != agentv1.ProcessState_PROCESS_STATE_CREATED {
		t.Errorf("looking started it: %v", s.GetState())
	}
	p.guest.print(stderr, "0123456789")
	if body, err := io.ReadAll(p.output(t, "?stream=stderr&offset=7").Body); err != nil || string(body) != "789" {
		t.Errorf("got %q, %v", body, err)
	}
	if body, err := io.ReadAll(p.output(t, "?stream=stderr&offset=end").Body); err != nil || len(body) != 0 {
		t.Errorf("from the end: %q, %v", body, err)
	}
}

func TestOutputTellsAGapBeforeTheFirstByte(t *testing.T) {
	t.Parallel()
	p := newPlane(t, Limits{})
	p.guest.edit(func() { p.guest.out[stdout], p.guest.dropped[stdout] = []byte("0123456789"), 6 })
	resp := p.output(t, "?offset=2")
	if got := resp.Header.Get("Space-Stream-Gap"); got != "2-6" {
		t.Errorf("gap %q", got)
	}
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "6789" {
		t.Errorf("got %q, %v", body, err)
	}
	if got := p.output(t, "?offset=6").Header.Values("Space-Stream-Gap"); got != nil {
		t.Errorf("gap %q where none is", got)
	}
}

// TestOutputIsCutWhenItCannotBeComplete: the body must not look finished.
func TestOutputIsCutWhenItCannotBeComplete(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]func(*plane){
		"gap in the middle": func(p *plane) {
			p.guest.edit(func() { p.guest.out[stdout], p.guest.dropped[stdout] = []byte("first 0123456789"), 10 })
		},
		"sandbox lost":    func(p *plane) { p.end(&LostError{Reason: "vmm_exit"}) },
		"sandbox paused":  func(p *plane) { p.end(&PausedError{Reason: "paused"}) },
		"gateway restart": func(p *plane) { p.end(ErrRestart) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlane(t, Limits{})
			resp := p.output(t, "?follow=true")
			p.guest.print(stdout, "first ")
			if _, err := io.ReadFull(resp.Body, make([]byte, 6)); err != nil {
				t.Fatal(err)
			}
			harm(p)
			if rest, err := io.ReadAll(resp.Body); err == nil || len(rest) != 0 {
				t.Errorf("the body ended with %q, %v", rest, err)
			}
		})
	}
}

func TestOutputOfAPausedSandboxIsAnAnswer(t *testing.T) {
	t.Parallel()
	p := newPlane(t, Limits{})
	p.guest.script = []*agentv1.AttachResponse{startedEvent(p.guest.state())} // then the stream breaks
	p.guest.edit(func() { p.guest.broken = sandbox.Errorf(sandbox.CodeUnavailable, "nobody is there") })
	p.end(&PausedError{SandboxID: p.claims.SandboxID, Reason: "paused"})
	resp, form := p.ask(t, "GET", "/v1/commands/"+string(p.claims.CommandID)+"/output?follow=true",
		http.Header{"Authorization": {"Bearer " + p.token(t, nil)}})
	if resp.StatusCode != 409 || form.Code != "invalid_state" || form.Remedy != "resume it: space resume "+string(p.claims.SandboxID) {
		t.Errorf("status %d, form %+v", resp.StatusCode, form)
	}
}

func TestOutputOfALostSandboxIsAnAnswer(t *testing.T) {
	t.Parallel()
	p := newPlane(t, Limits{})
	p.guest.print(stdout, strings.Repeat("x", 10))
	p.guest.script = []*agentv1.AttachResponse{startedEvent(p.guest.state())} // then the stream breaks
	p.end(&LostError{Reason: "deleted"})
	resp, form := p.ask(t, "GET", "/v1/commands/"+string(p.claims.CommandID)+"/output?follow=true",
		http.Header{"Authorization": {"Bearer " + p.token(t, nil)}})
	if resp.StatusCode != 404 || form.Cause != "deleted" {
		t.Errorf("status %d, form %+v", resp.StatusCode, form)
	}
}
