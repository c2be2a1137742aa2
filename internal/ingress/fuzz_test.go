package ingress

import (
	"encoding/json"
	"net/url"
	"strconv"
	"testing"
	"unicode/utf8"
)

func FuzzParseControl(f *testing.F) {
	for _, s := range []string{`{"type":"eof"}`, `{"type":"signal","signal":"SIGTERM"}`, `{"type":"signal"}`, `{"type":"eof","signal":"SIGHUP"}`,
		`{"type":"resize","cols":1}`, `{"type":"eof"}{}`, `[]`, `null`, `{"type":null}`, "\xff", `{"type":"signal","signal":"SIGRTMIN+1"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parseControl(data)
		if err != nil {
			if c != (clientControl{}) {
				t.Errorf("an error and %+v", c)
			}
			if msg := err.Error(); !utf8.ValidString(msg) || len(msg) > 256 {
				t.Errorf("message %q", msg)
			}
			return
		}
		if c.eof == (c.signal != "") {
			t.Errorf("%q asks for %+v", data, c)
		}
		if len(data) > maxControlIn || !json.Valid(data) || c.signal != "" && !signalName(c.signal) {
			t.Errorf("%q was accepted", data)
		}
	})
}

func FuzzParseQuery(f *testing.F) {
	for _, s := range []string{"", "offset=1", "offset=end&follow=true", "offset=1&offset=2", "x=1", "offset=18446744073709551616", "a;b", "%", "offset=%31"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		p, err := parseQuery(raw, "offset", "follow")
		if err != nil {
			return
		}
		values, err := url.ParseQuery(raw)
		if err != nil || len(values) != len(p) {
			t.Fatalf("%q gave %v, net/url says %v, %v", raw, p, values, err)
		}
		pos, err := p.position("offset")
		text, given := p["offset"]
		switch n, perr := strconv.ParseUint(text, 10, 63); {
		case !given && (err != nil || pos != position{}):
			t.Errorf("absent gave %v, %v", pos, err)
		case err == nil && given && !pos.end && (perr != nil || n != pos.offset):
			t.Errorf("%q gave %v", text, pos)
		case pos.end && text != "end":
			t.Errorf("%q is the end", text)
		}
	})
}
