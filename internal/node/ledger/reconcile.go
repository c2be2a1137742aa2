package ledger

import (
	"context"
	"fmt"
	"maps"
	"slices"
)

// Actions of a Repair.
const (
	ActionRemove = "remove"
	ActionReport = "report"
)

// Repair is what is done, or would be, about one Drift.
type Repair struct {
	Drift
	Action string
	Done   bool
	Reason string // why it is not done, or must not be
}

// missing is why what should be there is not made again.
const missing = "what a sandbox has lost cannot be given back to it: delete the sandbox, and create another one"

// Reconcile removes the objects that nothing stands for, and reports what it must not remove. What it removes is held meanwhile, so
// that a machine that is made at that moment keeps its objects. With dryRun it only says what it would do. An object
// that could not be removed is no error: its Repair says why.
func (l *Ledger) Reconcile(ctx context.Context, dryRun bool) ([]Repair, error) {
	select {
	case l.busy <- struct{}{}:
		defer func() { <-l.busy }()
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for another reconcile: %w", ctx.Err())
	}
	report, err := l.Count(ctx)
	if err != nil {
		return nil, err
	}
	repairs := make([]Repair, len(report.Drift))
	todo := map[string][]*Repair{}
	for i, d := range report.Drift {
		repairs[i] = Repair{Drift: d, Action: ActionRemove}
		switch r := &repairs[i]; {
		case !d.Live:
			r.Action, r.Reason = ActionReport, missing
		case d.Keep != "":
			r.Action, r.Reason = ActionReport, d.Keep
		default:
			todo[d.Owner] = append(todo[d.Owner], r)
		}
	}
	if dryRun || len(todo) == 0 {
		return repairs, nil
	}
	for _, owner := range slices.Sorted(maps.Keys(todo)) {
		l.mend(ctx, owner, todo[owner])
	}
	return repairs, l.verify(ctx, repairs)
}

// mend removes what one owner has too much. Errors go into the repairs.
func (l *Ledger) mend(ctx context.Context, owner string, repairs []*Repair) {
	if owner == "" {
		l.removeEach(ctx, repairs)
		return
	}
	busy, err := l.journal.Hold(owner, func(m Machine) error {
		if m.Stage == Changing {
			return errInUse
		}
		e := l.expect(owner, m)
		repairs = slices.DeleteFunc(repairs, func(r *Repair) bool { return stands(e, r) })
		if m.Stage == Running {
			l.removeEach(ctx, repairs)
			return nil
		}
		// What is mounted goes first: the removal of files must not go into it.
		l.removeEach(ctx, slices.DeleteFunc(slices.Clone(repairs), func(r *Repair) bool { return r.Kind != Mount && r.Kind != Process }))
		for _, r := range repairs {
			if r.Kind == Mount && r.box == nil && r.Reason != "" {
				return fmt.Errorf("%s is still mounted", r.Name)
			}
		}
		if err := l.journal.Reap(ctx, owner, m); err != nil {
			return err
		}
		l.removeEach(ctx, slices.DeleteFunc(slices.Clone(repairs), func(r *Repair) bool { return r.dir == nil }))
		return nil
	})
	if busy {
		err = errInUse
	}
	if err != nil {
		for _, r := range repairs {
			r.Reason = err.Error()
		}
	}
}

// stands reports whether by now something stands for the object of a repair, and says so in it.
func stands(e expectation, r *Repair) bool {
	ok := e.may != nil && e.may(r.Object) || slices.ContainsFunc(e.must, func(o Object) bool { return o.key() == r.key() })
	if ok {
		r.Reason = errInUse.Error()
	}
	return ok
}

func (l *Ledger) removeEach(ctx context.Context, repairs []*Repair) {
	for _, r := range repairs {
		if err := l.removeObject(ctx, r.Object); err != nil {
			r.Reason = err.Error()
		}
	}
}

// verify looks once more: only what is gone is done.
func (l *Ledger) verify(ctx context.Context, repairs []Repair) error {
	live, err := l.scan(ctx)
	if err != nil {
		return err
	}
	left := map[key]bool{}
	for _, o := range live {
		left[o.key()] = true
	}
	for i := range repairs {
		r := &repairs[i]
		if r.Action != ActionRemove {
			continue
		}
		r.Done = !left[r.key()]
		switch {
		case r.Done:
			r.Reason = ""
		case r.Reason == "":
			r.Reason = "it is there again, or still"
		}
	}
	return nil
}
