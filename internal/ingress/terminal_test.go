package ingress

import (
	"io"
	"slices"
	"strings"
	"testing"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	apiv1 "github.com/space-sandbox/space/api/v1"
)

func TestTerminalOnItsChannel(t *testing.T) {
	t.Parallel()
	p := newPlane(t, Limits{})
	p.guest.print(pty, "before ")
	c := p.attach(t, "?pty_offset=4")
	if c.started.PTYOffset != 4 {
		t.Errorf("started %+v", c.started)
	}
	p.guest.print(pty, "\x1b[1mbold\x00\xff")
	want := "re \x1b[1mbold\x00\xff"
	c.until("the terminal's bytes", func() bool { return c.out[apiv1.ChannelPTY] == want })
	end := p.attach(t, "?pty_offset=end")
	if end.started.PTYOffset != uint64(len("befo"+want)) {
		t.Errorf("from the end: %+v", end.started)
	}
	c.send(apiv1.ChannelControl, `{"type":"resize","cols":132,"rows":43}`)
	p.guest.await(t, "the size", func() bool { return slices.Equal(p.guest.sizes, []string{"132x43"}) })
	p.guest.exit(0)
	if closed := c.rest(); closed.Code != 4000 || len(c.out) != 1 {
		t.Errorf("closed with %v, output %q", closed, c.out)
	}
	res := p.output(t, "?stream=pty&offset=4&follow=true")
	defer res.Body.Close()
	if body, err := io.ReadAll(res.Body); err != nil || string(body) != want {
		t.Errorf("over HTTP: %q, %v", body, err)
	}
}

func TestResizeFrames(t *testing.T) {
	t.Parallel()
	for frame, want := range map[string]*agentv1.TerminalSize{
		`{"type":"resize","cols":80,"rows":24}`:                    {Cols: 80, Rows: 24},
		`{"type":"resize","cols":65535,"rows":1}`:                  {Cols: 65535, Rows: 1},
		`{"type":"resize","cols":65536,"rows":1}`:                  nil,
		`{"type":"resize","cols":0,"rows":1}`:                      nil,
		`{"type":"resize","cols":-1,"rows":1}`:                     nil,
		`{"type":"resize","cols":80}`:                              nil,
		`{"type":"resize","cols":80,"rows":24,"signal":"SIGKILL"}`: nil,
		`{"type":"eof","cols":80,"rows":24}`:                       nil,
		`{"type":"signal","signal":"SIGKILL","rows":24}`:           nil,
	} {
		c, err := parseControl([]byte(frame))
		switch {
		case want == nil && err == nil:
			t.Errorf("%s is accepted as %+v", frame, c)
		case want != nil && (err != nil || c.size.GetCols() != want.Cols || c.size.GetRows() != want.Rows):
			t.Errorf("%s: %v, %v", frame, c.size, err)
		}
	}
}

func TestTakeover(t *testing.T) {
	t.Parallel()
	p := newPlane(t, Limits{})
	first, second := p.attach(t, ""), p.attach(t, "?takeover=false")
	p.guest.print(stdout, "both")
	first.stdout("both")
	second.stdout("both")
	follower, plain := p.output(t, "?follow=true"), p.output(t, "")
	third := p.attach(t, "?takeover=true")
	// One that follows the output is a reader, too; its body must not look finished. One that only asked for what there
	// is has it.
	if body, err := io.ReadAll(follower.Body); err == nil || string(body) != "both" {
		t.Errorf("the follower's body ended with %q, %v", body, err)
	}
	if body, err := io.ReadAll(plain.Body); err != nil || string(body) != "both" {
		t.Errorf("the output is %q, %v", body, err)
	}
	for _, c := range []*wsClient{first, second} {
		if closed := c.rest(); closed.Code != 4001 || !strings.Contains(closed.Reason, "took the session over") {
			t.Errorf("closed with %v", closed)
		}
	}
	third.stdout("both")
	fourth := p.attach(t, "") // one that comes later is as welcome as before
	fourth.stdout("both")
	p.guest.exit(0)
	for _, c := range []*wsClient{third, fourth} {
		if closed := c.rest(); closed.Code != 4000 {
			t.Errorf("closed with %v", closed)
		}
	}
}
