package control_test

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store/sqlite"
)

// log reads all events after a place that match.
func (w *world) log(after int64, filter control.EventFilter) (list []control.Event) {
	w.t.Helper()
	for {
		page, missed, err := w.c.ReadEvents(w.t.Context(), after, filter, 0)
		if err != nil || missed {
			w.t.Fatalf("ReadEvents after %d: missed %v, %v", after, missed, err)
		}
		list = append(list, page.Events...)
		if len(page.Events) == 0 {
			return list
		}
		after = page.Next
	}
}

// story tells events in short: type and state of each.
func story(list []control.Event) (out []string) {
	for _, e := range list {
		var o struct{ Kind, State, Change string }
		if err := json.Unmarshal(e.Object, &o); err != nil {
			o.State = err.Error()
		}
		out = append(out, strings.Join(slices.DeleteFunc([]string{string(e.Type), o.Kind, o.State, o.Change}, func(s string) bool { return s == "" }), " "))
	}
	return out
}

func TestEventsOfALife(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	spec := sandbox.Spec{Name: "one", Env: map[string]string{"SECRET": "hunter2"}, Metadata: map[string]string{"team": "x"}}
	box := w.running(spec)
	other := w.running(sandbox.Spec{})
	made, err := w.c.CreateCommand(t.Context(), w.call(), string(box.ID), sandbox.CommandSpec{Argv: []string{"sleep"}, Env: map[string]string{"PASSWORD": "hunter2"}}, true)
	if err != nil {
		t.Fatal(err)
	}
	w.deleted(box.ID)
	list := w.log(0, control.EventFilter{SandboxID: box.ID})
	want := []string{
		"sandbox creating", "operation create queued",
		"operation create running",
		"sandbox running", "operation create succeeded",
		"command created", "command running",
		"sandbox deleting", "operation delete queued",
		"operation delete running",
		"command lost", "sandbox deleted", "operation delete succeeded",
	}
	if d := cmp.Diff(want, story(list)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	for _, e := range list {
		if strings.Contains(string(e.Object), "hunter2") || strings.Contains(string(e.Object), box.AgentToken) {
			t.Errorf("a secret is in %s %s", e.Type, e.Object)
		}
		ofNone := e.Type == control.EventCommand && !strings.Contains(string(e.Object), `"lost"`)
		if (e.OperationID == "") != ofNone {
			t.Errorf("%s %s is of operation %q", e.Type, e.Object, e.OperationID)
		}
		if e.Time.IsZero() || e.SandboxID != box.ID {
			t.Errorf("%+v", e)
		}
	}
	commands := w.log(0, control.EventFilter{Types: []control.EventType{control.EventCommand}})
	for _, e := range commands {
		if !strings.Contains(string(e.Object), string(made.Command.ID)) {
			t.Errorf("a command of another sandbox: %s", e.Object)
		}
	}
	if tpl := w.log(0, control.EventFilter{Types: []control.EventType{control.EventTemplate}}); len(tpl) != 2 {
		t.Errorf("templates: %v", story(tpl))
	}
	if got := w.log(0, control.EventFilter{SandboxID: other.ID}); len(got) != 5 {
		t.Errorf("the other sandbox: %v", story(got))
	}
}

// TestEventOfATemplateThatGoes: templates are told when they come, change their names and go, and not otherwise.
func TestEventOfATemplateThatGoes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	last := w.end()
	w.node.mu.Lock()
	w.node.templates = w.node.templates[:1]
	w.node.mu.Unlock()
	for range 2 {
		if _, err := w.c.GetTemplate(t.Context(), "unknown"); sandbox.CodeOf(err) != sandbox.CodeTemplateNotFound {
			t.Fatal(err)
		}
	}
	if got := story(w.log(last, control.EventFilter{})); !slices.Equal(got, []string{"template deleted"}) {
		t.Errorf("got %v", got)
	}
}

// end is the end of the log.
func (w *world) end() int64 {
	w.t.Helper()
	page, _, err := w.c.ReadEvents(w.t.Context(), -1, control.EventFilter{}, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	return page.Next
}

// TestFollowEvents: many follow while much changes and control is restarted: each reads all events of the log, each once,
// in order.
func TestFollowEvents(t *testing.T) {
	t.Parallel()
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "space.db"))
	if err != nil {
		t.Fatal(err)
	}
	w := newWorldOn(t, s)
	start := w.end()
	var mu sync.Mutex // of w.c
	current := func() *control.Control {
		mu.Lock()
		defer mu.Unlock()
		return w.c
	}
	ctx, stop := context.WithCancel(t.Context())
	follow := func() (seqs []int64) {
		for after := start; ; {
			page, missed, err := current().ReadEvents(ctx, after, control.EventFilter{}, patience)
			if missed {
				t.Errorf("something was missed after %d", after)
			}
			if err != nil && sandbox.CodeOf(err) != sandbox.CodeUnavailable && ctx.Err() == nil {
				t.Errorf("ReadEvents: %v", err)
			}
			for _, e := range page.Events {
				seqs = append(seqs, e.Seq)
				after = e.Seq
			}
			if ctx.Err() != nil {
				return seqs
			}
		}
	}
	const followers, boxes = 3, 6
	got := make([][]int64, followers)
	var wg sync.WaitGroup
	for i := range followers {
		wg.Go(func() { got[i] = follow() })
	}
	for i := range boxes {
		if i == boxes/2 {
			mu.Lock()
			w.crash()
			w.startControl()
			mu.Unlock()
			w.eventually("ready", func() bool { return w.c.Ready(t.Context()) == nil })
		}
		w.deleted(w.running(sandbox.Spec{}).ID)
	}
	end := w.end()
	stop()
	wg.Wait()
	for i := range got {
		if rest := w.log(lastOf(got[i], start), control.EventFilter{}); len(rest) > 0 { // what stop came before
			for _, e := range rest {
				got[i] = append(got[i], e.Seq)
			}
		}
		for n, seq := range got[i] {
			if seq != start+int64(n)+1 {
				t.Fatalf("follower %d: event %d in place %d", i, seq, start+int64(n)+1)
			}
		}
		if lastOf(got[i], start) < end {
			t.Errorf("follower %d read up to %d of %d", i, lastOf(got[i], start), end)
		}
	}
	if end-start < boxes*10 {
		t.Errorf("only %d events", end-start)
	}
}

func lastOf(seqs []int64, otherwise int64) int64 {
	if len(seqs) == 0 {
		return otherwise
	}
	return seqs[len(seqs)-1]
}

// TestReadEventsWaits: a reader waits for what matches, and learns how far it is when nothing does.
func TestReadEventsWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	last := w.end()
	type answer struct {
		page control.EventPage
		err  error
	}
	read := make(chan answer, 1)
	go func() {
		page, _, err := w.c.ReadEvents(t.Context(), last, control.EventFilter{Types: []control.EventType{control.EventCommand}}, patience)
		read <- answer{page, err}
	}()
	box := w.running(sandbox.Spec{}) // does not match
	w.started(box.ID)
	if a := <-read; a.err != nil || len(a.page.Events) == 0 || a.page.Events[0].Type != control.EventCommand {
		t.Errorf("got %+v", a)
	}
	page, missed, err := w.c.ReadEvents(t.Context(), last, control.EventFilter{Types: []control.EventType{control.EventLease}}, time.Millisecond)
	if err != nil || missed || len(page.Events) != 0 || page.Next != w.end() {
		t.Errorf("nothing matches: %+v, %v", page, err)
	}
	for _, after := range []int64{w.end() + 1, 1 << 60} {
		if _, missed, err := w.c.ReadEvents(t.Context(), after, control.EventFilter{}, patience); err != nil || !missed {
			t.Errorf("after %d: missed %v, %v", after, missed, err)
		}
	}
	if _, missed, err := w.c.ReadEvents(t.Context(), 0, control.EventFilter{}, 0); err != nil || missed {
		t.Errorf("from the beginning: missed %v, %v", missed, err)
	}
}

// TestEventsAreKeptForADay: older ones are removed, and whoever comes back for them is told.
func TestEventsAreKeptForADay(t *testing.T) {
	t.Parallel()
	w := newWorldWith(t, newTwoClocks())
	w.deleted(w.running(sandbox.Spec{}).ID)
	first := w.end()
	w.clock.pass(25 * time.Hour)
	w.running(sandbox.Spec{})
	w.crash() // old events are removed at the start and from time to time
	w.startControl()
	w.eventually("old events are removed", func() bool {
		page, missed, err := w.c.ReadEvents(t.Context(), 0, control.EventFilter{}, 0)
		return err == nil && missed && page.Oldest == first+1
	})
	if got := w.log(first, control.EventFilter{}); len(got) < 5 || got[0].Seq != first+1 {
		t.Errorf("the young ones: %v", story(got))
	}
}

// TestSandboxID resolves names of live ones and takes ids as they are.
func TestSandboxID(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	box := w.running(sandbox.Spec{Name: "one"})
	w.deleted(w.running(sandbox.Spec{Name: "two"}).ID)
	unknown := sandbox.NewID()
	for ref, want := range map[string]string{"one": fmt.Sprint(box.ID, sandbox.Code("")), "two": fmt.Sprint("", sandbox.CodeNotFound),
		string(unknown): fmt.Sprint(unknown, sandbox.Code(""))} {
		id, err := w.c.SandboxID(t.Context(), ref)
		if got := fmt.Sprint(id, sandbox.CodeOf(err)); got != want {
			t.Errorf("%s: %q, want %q", ref, got, want)
		}
	}
}
