package agent

import (
	"net/http"
	"testing"

	"github.com/space-sandbox/space/internal/rpc"
	"github.com/space-sandbox/space/internal/sandbox"
)

func TestParseRange(t *testing.T) {
	t.Parallel()
	whole := byteRange{-1, -1}
	for header, want := range map[string]byteRange{
		"": whole, "bytes=0-": {0, 9}, "bytes=3-5": {3, 5}, "bytes=3-99999999999999999": {3, 9}, "bytes=9-9": {9, 9},
		"bytes=-3": {7, 9}, "bytes=-30": {0, 9}, "bytes=5-3": whole, "bytes=a-b": whole, "bytes=1-2,4-5": whole, "bytes=": whole,
		"bytes=-": whole, "rows=1-2": whole, "bytes=+1-2": whole, "bytes=99999999999999999999-": whole,
	} {
		got, err := parseRange(header, 10)
		if err != nil || got == nil && want != whole || got != nil && *got != want {
			t.Errorf("%q: %+v, %v, want %+v", header, got, err, want)
		}
	}
	for _, header := range []string{"bytes=10-", "bytes=10-20", "bytes=-0"} {
		if got, err := parseRange(header, 10); sandbox.CodeOf(err) != sandbox.CodeRange {
			t.Errorf("%q: %+v, %v", header, got, err)
		}
	}
	if got, err := parseRange("bytes=0-", 0); got != nil || err != nil {
		t.Errorf("empty file: %+v, %v", got, err)
	}
}

func TestRangeOfAFile(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	p := f.write("file", "0123456789")
	for header, want := range map[string]struct {
		status     int
		part, body string
	}{"bytes=2-4": {206, "bytes 2-4/10", "234"}, "bytes=8-": {206, "bytes 8-9/10", "89"}, "bytes=0-3,5-6": {200, "", "0123456789"}, "bytes=10-": {416, "", ""}} {
		req, err := http.NewRequestWithContext(t.Context(), "GET", rpc.BaseURL+"/files?path="+p, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Range", header)
		status, raw, res := f.do(req)
		if status != want.status || res.Header.Get("Content-Range") != want.part || want.body != "" && string(raw) != want.body {
			t.Errorf("%s: %d %q %q", header, status, res.Header.Get("Content-Range"), raw)
		}
	}
}
