package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/rpc"
	"github.com/space-sandbox/space/internal/sandbox"
)

// watching is a client of the watch route.
type watching struct {
	t      *testing.T
	lines  *bufio.Scanner
	lastID int
}

func (f *fixture) watchFiles(lastID string, query ...string) *watching {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 30*time.Second)
	f.t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, rpc.BaseURL+"/files/watch?"+queryOf(query).Encode(), nil)
	if err != nil {
		f.t.Fatal(err)
	}
	if lastID != "" {
		req.Header.Set("Last-Event-ID", lastID)
	}
	res, err := withToken{f.http.Transport, testToken}.RoundTrip(req)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { res.Body.Close() })
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != "text/event-stream" {
		f.t.Fatalf("%d %q", res.StatusCode, res.Header)
	}
	return &watching{t: f.t, lines: bufio.NewScanner(res.Body)}
}

// next returns the next event as "type path"; "" at the end.
func (w *watching) next() string {
	w.t.Helper()
	kind, e := "", apiv1.FileEvent{}
	for w.lines.Scan() {
		name, value, _ := strings.Cut(w.lines.Text(), ": ")
		switch name {
		case "id":
			id, err := strconv.Atoi(value)
			if err != nil || id != w.lastID+1 {
				w.t.Errorf("id %q after %d", value, w.lastID)
			}
			w.lastID = id
		case "event":
			kind = value
		case "data":
			if err := json.Unmarshal([]byte(value), &e); err != nil || e.Type != kind {
				w.t.Errorf("event %q: %s, %v", kind, value, err)
			}
			return e.Type + " " + e.Path
		}
	}
	return ""
}

// until reads up to an event and returns what came before it.
func (w *watching) until(want string) map[string]bool {
	w.t.Helper()
	seen := map[string]bool{}
	for {
		got := w.next()
		if got == want {
			return seen
		}
		if got == "" {
			w.t.Fatalf("no %q; %v, %v", want, seen, w.lines.Err())
		}
		seen[got] = true
	}
}

func TestWatchFiles(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	dir := filepath.Join(f.dir, "w")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	w := f.watchFiles("", "path", dir)
	p := f.write("w/file", "content")
	w.until("create " + p)
	w.until("write " + p)
	if err := errors.Join(os.Chmod(p, 0o600), os.Rename(p, dir+"/new"), os.Remove(dir+"/new"), os.Mkdir(dir+"/sub", 0o755)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"chmod " + p, "rename " + p, "create " + dir + "/new", "remove " + dir + "/new", "create " + dir + "/sub"} {
		w.until(want)
	}
	f.write("w/sub/unseen", "")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if seen := w.until("remove " + dir); seen["create "+dir+"/sub/unseen"] {
		t.Error("a directory below is watched without recursive")
	}
	if got := w.next(); got != "" {
		t.Errorf("after the end: %q", got)
	}
	f.actRefused(sandbox.CodeNotFound, "GET", "/watch", "path", dir)
}

func TestWatchRecursive(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	old := f.write("w/a/b/old", "x")
	dir := filepath.Join(f.dir, "w")
	if err := os.Symlink(f.dir, dir+"/loop"); err != nil {
		t.Fatal(err)
	}
	w := f.watchFiles("", "path", dir, "recursive", "true")
	if err := os.WriteFile(old, []byte("y"), 0o644); err != nil {
		t.Fatal(err)
	}
	w.until("write " + old)
	// New directories are watched, and what was made in them before that is told.
	deep := f.write("w/n/o/p/file", "x")
	w.until("create " + deep)
	if err := os.Rename(dir+"/n", dir+"/moved"); err != nil {
		t.Fatal(err)
	}
	w.until("create " + dir + "/moved/o/p/file")
	if err := os.Remove(dir + "/moved/o/p/file"); err != nil {
		t.Fatal(err)
	}
	w.until("remove " + dir + "/moved/o/p/file")
	// What is moved out is not watched any more.
	if err := errors.Join(os.Rename(dir+"/moved", f.dir+"/away"), os.WriteFile(f.dir+"/away/unseen", nil, 0o644), os.WriteFile(dir+"/last", nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	for got := range w.until("create " + dir + "/last") {
		if strings.Contains(got, "unseen") {
			t.Errorf("%q", got)
		}
	}
}

// TestWatchAFile sees it replaced, and nothing of its neighbours.
func TestWatchAFile(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	file := f.write("w/file", "x")
	w := f.watchFiles("", "path", file)
	f.write("w/other", "y")
	f.put([]byte("new"), "path", file)
	for got := range w.until("create " + file) {
		if !strings.HasSuffix(got, " "+file) {
			t.Errorf("%q", got)
		}
	}
}

// TestWatchOverflow: a client that comes back, and one whose events were lost, are told so.
func TestWatchOverflow(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	w := f.watchFiles("7", "path", f.dir)
	if got := w.next(); got != "overflow "+f.dir {
		t.Errorf("first %q", got)
	}
	slow := &fileWatch{events: make(chan apiv1.FileEvent, watchQueue), lost: make(chan struct{}, 1), base: "/w"}
	for n := range watchQueue + 10 {
		slow.emit(apiv1.FileCreated, fmt.Sprint("/w/", n), false)
	}
	ended, kinds := make(chan struct{}), map[string]int{}
	for range watchQueue + 1 {
		e, more := slow.next(t.Context(), nil, ended)
		if !more {
			t.Fatal("it ended")
		}
		kinds[e.Type]++
	}
	if kinds[apiv1.FileOverflow] != 1 || kinds[apiv1.FileCreated] != watchQueue {
		t.Errorf("got %v", kinds)
	}
	close(ended)
	if e, more := slow.next(t.Context(), nil, ended); more {
		t.Errorf("after the end: %+v", e)
	}
}

func TestWatchesAreCounted(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	for range maxWatches {
		f.server.watches <- struct{}{}
	}
	f.actRefused(sandbox.CodeCapacity, "GET", "/watch", "path", f.dir)
	for range maxWatches {
		<-f.server.watches
	}
	// The place of a client that has gone is free again.
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, rpc.BaseURL+"/files/watch?path="+f.dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := withToken{f.http.Transport, testToken}.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	cancel()
	for range maxWatches {
		f.server.watches <- struct{}{}
	}
}
