package main

import (
	"bytes"
	"runtime/pprof"
	"slices"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/space-sandbox/space/api/v1"
)

// TestParseProfile reads what the runtime writes: the profile of goroutines, in which this test is.
func TestParseProfile(t *testing.T) {
	t.Parallel()
	var buf bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&buf, 0); err != nil {
		t.Fatal(err)
	}
	stacks, err := parseProfile(buf.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(stacks, func(s stack) bool {
		inner := slices.IndexFunc(s.functions, func(f string) bool { return strings.HasSuffix(f, ".TestParseProfile") })
		outer := slices.Index(s.functions, "testing.tRunner")
		return s.value > 0 && inner >= 0 && outer > inner
	}) {
		t.Errorf("no stack has this test inside of its runner: %v", stacks)
	}
	if _, err := parseProfile(buf.Bytes()[:buf.Len()/2]); err == nil {
		t.Error("half a profile was accepted")
	}
}

func TestOwner(t *testing.T) {
	t.Parallel()
	for want, functions := range map[string][]string{
		"store: SQLite and its driver": {"runtime.memmove", "modernc.org/sqlite.(*conn).step", "database/sql.(*DB).query", "github.com/space-sandbox/space/internal/control.(*Control).plan", "net/http.(*conn).serve"},
		"control":                      {"runtime.mallocgc", "github.com/space-sandbox/space/internal/operation.(*Engine).Run"},
		"calls to node and gateway":    {"syscall.write", "net/http.(*http2ClientConn).RoundTrip", "connectrpc.com/connect.(*Client).CallUnary"},
		"api: check, decode, encode":   {"encoding/json.Marshal", "github.com/danielgtaylor/huma/v2.Register", "net/http.(*conn).serve"},
		"http server":                  {"syscall.read", "net/http.(*conn).serve"},
		"garbage collector":            {"runtime.scanobject", "runtime.gcBgMarkWorker"},
		"scheduler":                    {"runtime.futex", "runtime.mcall"},
	} {
		if got := owner(functions); got != want {
			t.Errorf("%v: %q, want %q", functions, got, want)
		}
	}
}

// TestSplit: the stages of a create are all of it, and times in the wrong order are refused.
func TestSplit(t *testing.T) {
	t.Parallel()
	at := func(ms int) time.Time { return time.Unix(1, 0).Add(time.Duration(ms) * time.Millisecond) }
	started, ended := at(3), at(20)
	op := apiv1.Operation{CreatedAt: at(1), StartedAt: &started, EndedAt: &ended}
	got, err := split(at(0), at(26), op, visit{ensure: at(6), ready: at(10), publish: at(15)})
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for i, s := range stages() {
		if want := float64([]int{1, 2, 3, 4, 5, 5, 6}[i]); got[s] != want {
			t.Errorf("%s: %v ms, want %v", s, got[s], want)
		}
		sum += got[s]
	}
	if sum != got["create"] {
		t.Errorf("the stages are %v ms together, the create %v", sum, got["create"])
	}
	if _, err := split(at(0), at(26), op, visit{ensure: at(6), publish: at(15)}); err == nil {
		t.Error("a call that was never made was accepted")
	}
}

func TestMountOf(t *testing.T) {
	t.Parallel()
	if fsType, _, err := mountOf("/proc/self"); err != nil || fsType != "proc" {
		t.Errorf("/proc is %q, %v", fsType, err)
	}
}
