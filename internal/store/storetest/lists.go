package storetest

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
)

// pagesAreStable walks a list while rows come and go: what was there all the time is seen exactly once, in order.
func pagesAreStable(t *testing.T, s store.Store) {
	ctx := t.Context()
	var boxes []sandbox.Sandbox
	for i := range 10 {
		b := box("")
		b.CreatedAt = epoch().Add(time.Duration(i/2) * time.Second) // two at each moment
		boxes = append(boxes, b)
	}
	insert(t, s, boxes...)
	slices.SortFunc(boxes, func(a, b sandbox.Sandbox) int {
		if c := b.CreatedAt.Compare(a.CreatedAt); c != 0 {
			return c
		}
		if a.ID > b.ID {
			return -1
		}
		return 1
	})
	for _, ascending := range []bool{false, true} {
		var want, got []sandbox.ID
		for _, b := range boxes {
			want = append(want, b.ID)
		}
		if ascending {
			slices.Reverse(want)
		}
		req := store.SandboxFilter{PageRequest: store.PageRequest{Limit: 3, Ascending: ascending, Count: true}}
		total := len(boxes)
		for pages := 0; ; pages++ {
			page := must[store.Page[sandbox.Sandbox]](t)(s.Sandboxes(ctx, req))
			for _, b := range page.Items {
				got = append(got, b.ID)
			}
			if page.Total == nil || *page.Total != total {
				t.Fatalf("page %d: total %v, want %d", pages, page.Total, total)
			}
			if page.NextCursor == "" {
				break
			}
			req.Cursor = page.NextCursor
			outside := box("") // lies before the place reached, in either direction
			outside.CreatedAt = epoch().Add(time.Hour)
			if ascending {
				outside.CreatedAt = epoch().Add(-time.Hour)
			}
			insert(t, s, outside)
			total++
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("ascending %v (-want +got):\n%s", ascending, d)
		}
		deleteOthers(t, s, boxes)
	}
}

// deleteOthers marks every live sandbox deleted that is not in keep.
func deleteOthers(t *testing.T, s store.Store, keep []sandbox.Sandbox) {
	t.Helper()
	for _, b := range must[[]sandbox.Sandbox](t)(s.LiveSandboxes(t.Context())) {
		if !slices.ContainsFunc(keep, func(k sandbox.Sandbox) bool { return k.ID == b.ID }) {
			b.State = sandbox.StateDeleted
			update(t, s, func(tx store.Tx) error { _, err := tx.UpdateSandbox(b); return err })
		}
	}
}

func pageBounds(t *testing.T, s store.Store) {
	ctx := t.Context()
	page := must[store.Page[sandbox.Sandbox]](t)(s.Sandboxes(ctx, store.SandboxFilter{PageRequest: store.PageRequest{Count: true}}))
	if len(page.Items) != 0 || page.NextCursor != "" || page.Total == nil || *page.Total != 0 {
		t.Errorf("empty list: %+v", page)
	}
	for _, limit := range []int{-1, 101} {
		if _, err := s.Sandboxes(ctx, store.SandboxFilter{PageRequest: store.PageRequest{Limit: limit}}); err == nil {
			t.Errorf("limit %d was accepted", limit)
		}
	}
	for _, cursor := range []string{"x", "e30", "bnVsbA", string(make([]byte, 300))} {
		_, err := s.Operations(ctx, store.OperationFilter{PageRequest: store.PageRequest{Cursor: cursor}})
		if !errors.Is(err, store.ErrBadCursor) {
			t.Errorf("cursor %q: %v, want ErrBadCursor", cursor, err)
		}
	}
	insert(t, s, box(""), box(""))
	exact := must[store.Page[sandbox.Sandbox]](t)(s.Sandboxes(ctx, store.SandboxFilter{PageRequest: store.PageRequest{Limit: 2}}))
	if len(exact.Items) != 2 || exact.NextCursor != "" || exact.Total != nil {
		t.Errorf("a page that holds exactly all: %d items, cursor %q, total %v", len(exact.Items), exact.NextCursor, exact.Total)
	}
}

func sandboxFilters(t *testing.T, s store.Store) {
	a, b, c, d := box("a"), box("b"), box("c"), box("d")
	a.State, a.Metadata = sandbox.StateRunning, map[string]string{"team": "x", `we"ird.key'`: "1"}
	b.State, b.Metadata = sandbox.StateFailed, map[string]string{"team": "y"}
	c.State, c.CreatedAt = sandbox.StateDeleted, epoch().Add(time.Minute)
	d.CreatedAt, d.Template = epoch().Add(time.Hour), sandbox.TemplateRef{Ref: "base:latest", Digest: "sha256:bb"}
	insert(t, s, a, b, c, d)
	for name, row := range map[string]struct {
		filter store.SandboxFilter
		want   []string
	}{
		"none":         {store.SandboxFilter{}, []string{"a", "b", "d"}},
		"deleted":      {store.SandboxFilter{States: []sandbox.State{sandbox.StateDeleted}}, []string{"c"}},
		"two states":   {store.SandboxFilter{States: []sandbox.State{sandbox.StateFailed, sandbox.StateRunning}}, []string{"a", "b"}},
		"after":        {store.SandboxFilter{CreatedAfter: epoch()}, []string{"d"}},
		"template ref": {store.SandboxFilter{Template: "base:latest"}, []string{"d"}},
		"digest":       {store.SandboxFilter{Template: "sha256:aa"}, []string{"a", "b"}},
		"metadata":     {store.SandboxFilter{Metadata: map[string]string{"team": "x"}}, []string{"a"}},
		"odd key":      {store.SandboxFilter{Metadata: map[string]string{`we"ird.key'`: "1", "team": "x"}}, []string{"a"}},
		"id":           {store.SandboxFilter{ID: b.ID}, []string{"b"}},
		"id, deleted":  {store.SandboxFilter{ID: c.ID}, nil},
		"no match":     {store.SandboxFilter{Metadata: map[string]string{"team": "' OR 1=1 --"}}, nil},
	} {
		var got []string
		for _, b := range must[store.Page[sandbox.Sandbox]](t)(s.Sandboxes(t.Context(), row.filter)).Items {
			got = append(got, b.Name)
		}
		slices.Sort(got)
		if d := cmp.Diff(row.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

func commandFilters(t *testing.T, s store.Store) {
	home, other := sandbox.NewID(), sandbox.NewID()
	a, b, c, d := command(home), command(home), command(home), command(other)
	a.Spec.Tag, b.PID, c.State = "build", 42, sandbox.CommandExited
	b.State = sandbox.CommandRunning
	b.CreatedAt, c.CreatedAt = epoch().Add(time.Second), epoch().Add(2*time.Second)
	update(t, s, func(tx store.Tx) error {
		return errors.Join(tx.InsertCommand(a), tx.InsertCommand(b), tx.InsertCommand(c), tx.InsertCommand(d))
	})
	for name, row := range map[string]struct {
		filter store.CommandFilter
		want   []sandbox.CommandID
	}{
		"none":  {store.CommandFilter{}, []sandbox.CommandID{c.ID, b.ID, a.ID}},
		"tag":   {store.CommandFilter{Tag: "build"}, []sandbox.CommandID{a.ID}},
		"pid":   {store.CommandFilter{PID: 42}, []sandbox.CommandID{b.ID}},
		"state": {store.CommandFilter{States: []sandbox.CommandState{sandbox.CommandExited}}, []sandbox.CommandID{c.ID}},
		"after": {store.CommandFilter{CreatedAfter: b.CreatedAt}, []sandbox.CommandID{c.ID}},
	} {
		var got []sandbox.CommandID
		for _, c := range must[store.Page[sandbox.Command]](t)(s.Commands(t.Context(), home, row.filter)).Items {
			got = append(got, c.ID)
		}
		if d := cmp.Diff(row.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
	open := must[[]sandbox.Command](t)(s.OpenCommands(t.Context(), home))
	if len(open) != 2 || open[0].ID != a.ID || open[1].ID != b.ID {
		t.Errorf("open: %v", open)
	}
	for n, want := range [][]sandbox.CommandID{{a.ID, b.ID}, {a.ID, b.ID, c.ID}, {a.ID, b.ID, c.ID}, {a.ID, b.ID, c.ID}} {
		var got []sandbox.CommandID
		for _, c := range must[[]sandbox.Command](t)(s.LastCommands(t.Context(), home, n)) {
			got = append(got, c.ID)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("the last %d (-want +got):\n%s", n, d)
		}
	}
	update(t, s, func(tx store.Tx) error { return tx.DeleteCommands(home) })
	if left := must[[]sandbox.Command](t)(s.LastCommands(t.Context(), home, 10)); len(left) != 0 {
		t.Errorf("%d sessions left", len(left))
	}
	if left := must[[]sandbox.Command](t)(s.LastCommands(t.Context(), other, 10)); len(left) != 1 {
		t.Errorf("another sandbox's sessions: %d left, want 1", len(left))
	}
}

func operationLists(t *testing.T, s store.Store) {
	a, b, c := op("create"), op("delete"), op("create")
	b.CreatedAt, b.State = epoch().Add(time.Second), operation.Running
	c.CreatedAt, c.State = epoch().Add(2*time.Second), operation.Succeeded
	update(t, s, func(tx store.Tx) error {
		return errors.Join(tx.InsertOperation(a), tx.InsertOperation(b), tx.InsertOperation(c))
	})
	ids := func(ops []operation.Operation) (out []sandbox.OperationID) {
		for _, o := range ops {
			out = append(out, o.ID)
		}
		return out
	}
	page := must[store.Page[operation.Operation]](t)(s.Operations(t.Context(), store.OperationFilter{PageRequest: store.PageRequest{Limit: 2}}))
	rest := must[store.Page[operation.Operation]](t)(s.Operations(t.Context(), store.OperationFilter{PageRequest: store.PageRequest{Limit: 2, Cursor: page.NextCursor}}))
	got := append(ids(page.Items), ids(rest.Items)...)
	if d := cmp.Diff([]sandbox.OperationID{c.ID, b.ID, a.ID}, got); d != "" {
		t.Errorf("list (-want +got):\n%s", d)
	}
	for name, row := range map[string]struct {
		filter store.OperationFilter
		want   []sandbox.OperationID
	}{
		"states":           {store.OperationFilter{States: []operation.State{operation.Running, operation.Succeeded}}, []sandbox.OperationID{c.ID, b.ID}},
		"resource":         {store.OperationFilter{ResourceID: b.Resource.ID}, []sandbox.OperationID{b.ID}},
		"no such resource": {store.OperationFilter{ResourceID: "x"}, nil},
		"created after":    {store.OperationFilter{CreatedAfter: b.CreatedAt}, []sandbox.OperationID{c.ID}},
		"state that isn't": {store.OperationFilter{States: []operation.State{operation.Failed}}, nil},
	} {
		if d := cmp.Diff(row.want, ids(must[store.Page[operation.Operation]](t)(s.Operations(t.Context(), row.filter)).Items)); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
	open := ids(must[[]operation.Operation](t)(s.UnfinishedOperations(t.Context())))
	if d := cmp.Diff([]sandbox.OperationID{a.ID, b.ID}, open); d != "" {
		t.Errorf("unfinished (-want +got):\n%s", d)
	}
}

// openOperations: the order is that of acceptance, whatever the clock said meanwhile.
func openOperations(t *testing.T, s store.Store) {
	resource := op("").Resource
	var want []sandbox.OperationID
	for n := range 4 {
		o := op("pause")
		o.Resource = resource
		o.CreatedAt = epoch().Add(-time.Duration(n) * time.Hour) // a clock that is put back again and again
		update(t, s, func(tx store.Tx) error { return errors.Join(tx.InsertOperation(o), tx.InsertOperation(op("pause"))) })
		want = append(want, o.ID)
	}
	check := func(when string) {
		t.Helper()
		var got []sandbox.OperationID
		for _, o := range must[[]operation.Operation](t)(s.OpenOperations(t.Context(), resource)) {
			got = append(got, o.ID)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", when, d)
		}
	}
	check("all")
	end := func(id sandbox.OperationID) {
		update(t, s, func(tx store.Tx) error {
			o, err := tx.Operation(t.Context(), id)
			o.State, o.EndedAt = operation.Succeeded, epoch()
			return errors.Join(err, tx.UpdateOperation(o))
		})
	}
	end(want[3])
	end(want[0])
	update(t, s, func(tx store.Tx) error { return tx.Purge(epoch(), epoch().Add(time.Hour)) })
	want = want[1:3]
	later := op("delete")
	later.Resource = resource
	update(t, s, func(tx store.Tx) error { return tx.InsertOperation(later) })
	want = append(want, later.ID)
	check("after two have ended and one has come")
	other := resource
	other.Type = "template"
	if open := must[[]operation.Operation](t)(s.OpenOperations(t.Context(), other)); len(open) != 0 {
		t.Errorf("of another type: %v", open)
	}
}
