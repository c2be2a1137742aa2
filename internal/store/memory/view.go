package memory

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
)

// view implements store.Reader on one version.
type view struct{ s *state }

func find[K comparable, V any](m map[K]V, key K, clone func(V) V) (V, error) {
	v, ok := m[key]
	if !ok {
		return v, store.ErrNotFound
	}
	return clone(v), nil
}

func same[T any](v T) T { return v }

// matching returns clones of what keep accepts, oldest first.
func matching[K comparable, V any](m map[K]V, place func(V) store.Position, clone func(V) V, keep func(V) bool) []V {
	var out []V
	for _, v := range m {
		if keep(v) {
			out = append(out, clone(v))
		}
	}
	slices.SortFunc(out, func(a, b V) int { return compare(place(a), place(b)) })
	return out
}

func compare(a, b store.Position) int {
	return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), strings.Compare(a.ID, b.ID))
}

// page cuts one page out of rows (oldest first).
func page[V any](rows []V, place func(V) store.Position, req store.PageRequest) (store.Page[V], error) {
	var out store.Page[V]
	req, err := req.Normalize()
	if err != nil {
		return out, err
	}
	if req.Count {
		n := len(rows)
		out.Total = &n
	}
	sign := 1
	if !req.Ascending {
		slices.Reverse(rows)
		sign = -1
	}
	if after, ok, err := store.ParseCursor(req.Cursor); err != nil {
		return out, err
	} else if ok {
		rows = slices.DeleteFunc(rows, func(v V) bool { return sign*compare(place(v), after) <= 0 })
	}
	if len(rows) > req.Limit {
		rows = rows[:req.Limit]
		out.NextCursor = place(rows[req.Limit-1]).Cursor()
	}
	out.Items = rows
	return out, nil
}

func placeOfSandbox(s sandbox.Sandbox) store.Position {
	return store.Position{CreatedAt: s.CreatedAt, ID: string(s.ID)}
}

func placeOfOperation(o operation.Operation) store.Position {
	return store.Position{CreatedAt: o.CreatedAt, ID: string(o.ID)}
}

func placeOfCommand(c sandbox.Command) store.Position {
	return store.Position{CreatedAt: c.CreatedAt, ID: string(c.ID)}
}

func (v view) Sandbox(_ context.Context, id sandbox.ID) (sandbox.Sandbox, error) {
	return find(v.s.sandboxes, id, sandbox.Sandbox.Clone)
}

func (v view) SandboxByName(_ context.Context, name string) (sandbox.Sandbox, error) {
	for _, s := range v.s.sandboxes {
		if name != "" && s.Name == name && s.Live() {
			return s.Clone(), nil
		}
	}
	return sandbox.Sandbox{}, store.ErrNotFound
}

func (v view) Sandboxes(_ context.Context, f store.SandboxFilter) (store.Page[sandbox.Sandbox], error) {
	rows := matching(v.s.sandboxes, placeOfSandbox, sandbox.Sandbox.Clone, func(s sandbox.Sandbox) bool {
		if len(f.States) > 0 && !slices.Contains(f.States, s.State) || len(f.States) == 0 && !s.Live() {
			return false
		}
		if f.ID != "" && f.ID != s.ID || !isAfter(s.CreatedAt, f.CreatedAfter) {
			return false
		}
		if f.Template != "" && f.Template != s.Template.Ref && f.Template != s.Template.Digest {
			return false
		}
		for k, want := range f.Metadata {
			if got, ok := s.Metadata[k]; !ok || got != want {
				return false
			}
		}
		return true
	})
	return page(rows, placeOfSandbox, f.PageRequest)
}

// isAfter reports whether t lies after limit, which is no limit when it is zero.
func isAfter(t, limit time.Time) bool { return limit.IsZero() || t.After(limit) }

func (v view) LiveSandboxes(context.Context) ([]sandbox.Sandbox, error) {
	return matching(v.s.sandboxes, placeOfSandbox, sandbox.Sandbox.Clone, sandbox.Sandbox.Live), nil
}

func (v view) Usage(_ context.Context, exceptDriver string) (u store.Usage, err error) {
	for _, s := range v.s.sandboxes {
		if s.Live() && s.State != sandbox.StateFailed && s.Driver != exceptDriver {
			u.Sandboxes++
			u.MemoryMiB += int64(s.MemoryMiB)
			u.VCPUs += int64(s.VCPUs)
		}
	}
	return u, nil
}

func (v view) EndingLeases(_ context.Context, limit int) ([]sandbox.Sandbox, error) {
	end := func(s sandbox.Sandbox) store.Position {
		return store.Position{CreatedAt: s.Lease.ExpiresAt, ID: string(s.ID)}
	}
	rows := matching(v.s.sandboxes, end, sandbox.Sandbox.Clone,
		func(s sandbox.Sandbox) bool { return s.Lease != nil && !s.Lease.ExpiresAt.IsZero() })
	return rows[:min(len(rows), limit)], nil
}

func (v view) Operation(_ context.Context, id sandbox.OperationID) (operation.Operation, error) {
	return find(v.s.operations, id, cloneOperation)
}

func (v view) Operations(_ context.Context, f store.OperationFilter) (store.Page[operation.Operation], error) {
	rows := matching(v.s.operations, placeOfOperation, cloneOperation, func(o operation.Operation) bool {
		return (len(f.States) == 0 || slices.Contains(f.States, o.State)) && isAfter(o.CreatedAt, f.CreatedAfter) &&
			(f.ResourceID == "" || o.Resource.ID == f.ResourceID)
	})
	return page(rows, placeOfOperation, f.PageRequest)
}

func (v view) UnfinishedOperations(context.Context) ([]operation.Operation, error) {
	return matching(v.s.operations, placeOfOperation, cloneOperation,
		func(o operation.Operation) bool { return !o.State.Ended() }), nil
}

func (v view) OpenOperations(_ context.Context, resource operation.Resource) ([]operation.Operation, error) {
	open := matching(v.s.operations, placeOfOperation, cloneOperation,
		func(o operation.Operation) bool { return o.Resource == resource && !o.State.Ended() })
	slices.SortFunc(open, func(a, b operation.Operation) int { return cmp.Compare(v.s.accepted[a.ID], v.s.accepted[b.ID]) })
	return open, nil
}

func (v view) Command(_ context.Context, id sandbox.CommandID) (sandbox.Command, error) {
	return find(v.s.commands, id, sandbox.Command.Clone)
}

func (v view) CommandByProcess(_ context.Context, box sandbox.ID, process sandbox.ProcessID) (sandbox.Command, error) {
	for _, c := range v.s.commands {
		if c.SandboxID == box && c.ProcessID == process {
			return c.Clone(), nil
		}
	}
	return sandbox.Command{}, store.ErrNotFound
}

func (v view) Commands(_ context.Context, box sandbox.ID, f store.CommandFilter) (store.Page[sandbox.Command], error) {
	rows := matching(v.s.commands, placeOfCommand, sandbox.Command.Clone, func(c sandbox.Command) bool {
		return c.SandboxID == box && (f.Tag == "" || c.Spec.Tag == f.Tag) && (f.PID == 0 || c.PID == f.PID) &&
			(len(f.States) == 0 || slices.Contains(f.States, c.State)) && isAfter(c.CreatedAt, f.CreatedAfter)
	})
	return page(rows, placeOfCommand, f.PageRequest)
}

func (v view) OpenCommands(_ context.Context, box sandbox.ID) ([]sandbox.Command, error) {
	return matching(v.s.commands, placeOfCommand, sandbox.Command.Clone,
		func(c sandbox.Command) bool { return c.SandboxID == box && !c.State.Ended() }), nil
}

func (v view) LastCommands(_ context.Context, box sandbox.ID, n int) ([]sandbox.Command, error) {
	all := matching(v.s.commands, placeOfCommand, sandbox.Command.Clone,
		func(c sandbox.Command) bool { return c.SandboxID == box })
	old := max(len(all)-n, 0)
	return append(slices.DeleteFunc(slices.Clone(all[:old]), func(c sandbox.Command) bool { return c.State.Ended() }), all[old:]...), nil
}

func (v view) Templates(context.Context) ([]sandbox.Template, error) {
	var out []sandbox.Template
	for _, t := range v.s.templates {
		if t.listed {
			out = append(out, cloneTemplate(t.Template))
		}
	}
	first := func(t sandbox.Template) string { return append(slices.Clone(t.Names), "")[0] }
	slices.SortFunc(out, func(a, b sandbox.Template) int {
		return cmp.Or(strings.Compare(first(a), first(b)), strings.Compare(a.Digest, b.Digest))
	})
	return out, nil
}

func (v view) Template(_ context.Context, digest string) (sandbox.Template, error) {
	t, err := find(v.s.templates, digest, same)
	return cloneTemplate(t.Template), err
}

func (v view) Key(_ context.Context, hash auth.KeyHash) (store.Key, error) {
	return find(v.s.keys, hash, same)
}

func (v view) Idempotency(_ context.Context, id store.IdempotencyID) (store.IdempotencyEntry, error) {
	return find(v.s.idempotency, id, same)
}

func (v view) Meta(_ context.Context, name string) (string, error) { return find(v.s.meta, name, same) }
