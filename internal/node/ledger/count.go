package ledger

import (
	"context"
	"slices"
	"strconv"
)

// looks is how often a difference must be seen before it counts as one: objects and records are not read in one moment.
const looks = 2

// expectation is what must be there, and what may be.
type expectation struct {
	must []Object
	may  func(Object) bool // nil: nothing
}

// view is the outcome of one look.
type view struct {
	tallies map[Kind]*Tally
	drift   []Drift
}

// Count compares what is there with what should be. Only what is seen twice is drift.
func (l *Ledger) Count(ctx context.Context) (Report, error) {
	v, err := l.look(ctx)
	if err != nil {
		return Report{}, err
	}
	for i := 1; i < looks && len(v.drift) > 0; i++ {
		next, err := l.look(ctx)
		if err != nil {
			return Report{}, err
		}
		next.drift = slices.DeleteFunc(next.drift, func(d Drift) bool {
			again := slices.ContainsFunc(v.drift, func(o Drift) bool { return o.key() == d.key() && o.Live == d.Live })
			if !again {
				next.settle(d)
			}
			return !again
		})
		v = next
	}
	report := Report{Drift: v.drift}
	for _, k := range Kinds() {
		report.Tallies = append(report.Tallies, *v.tallies[k])
	}
	sortDrift(report.Drift)
	return report, nil
}

// settle takes back what the tallies say of a difference that was there for a moment only.
func (v *view) settle(d Drift) {
	if d.Live {
		v.tallies[d.Kind].Expected++
	} else {
		v.tallies[d.Kind].Expected--
	}
}

// look compares once. An owner that the journal describes in two ways before and after is being changed.
func (l *Ledger) look(ctx context.Context) (view, error) {
	before := l.journal.Snapshot()
	live, err := l.scan(ctx)
	if err != nil {
		return view{}, err
	}
	after := l.journal.Snapshot()
	v := view{tallies: map[Kind]*Tally{}}
	for _, k := range Kinds() {
		v.tallies[k] = &Tally{Kind: k}
	}
	settled := func(owner string) bool {
		m := after.Owners[owner]
		return m.Stage != Changing && m.same(before.Owners[owner])
	}
	missing, may := map[key]Object{}, map[string]func(Object) bool{}
	add := func(owner string, e expectation) {
		for _, o := range e.must {
			missing[o.key()] = o
		}
		may[owner] = e.may
	}
	add("", l.own())
	for owner, m := range after.Owners {
		if settled(owner) {
			add(owner, l.expect(owner, m))
		}
	}
	for _, o := range live {
		o = attribute(o, before, after)
		v.tallies[o.Kind].Live++
		_, expected := missing[o.key()]
		delete(missing, o.key())
		if f := may[o.Owner]; expected || !settled(o.Owner) || f != nil && f(o) {
			v.tallies[o.Kind].Expected++
			continue
		}
		v.drift = append(v.drift, Drift{Object: o, Live: true})
	}
	for _, o := range missing {
		v.tallies[o.Kind].Expected++
		v.drift = append(v.drift, Drift{Object: o})
	}
	return v, nil
}

// attribute gives a process and its uid the owner that the uid has, or had when the look began.
func attribute(o Object, before, after Snapshot) Object {
	if o.Kind != Process || o.Owner != "" {
		return o
	}
	if owner, ok := after.UIDs[o.process.UID]; ok {
		o.Owner = owner
	} else if owner, ok := before.UIDs[o.process.UID]; ok {
		o.Owner = owner
	}
	return o
}

func uidName(uid uint32) string { return strconv.FormatUint(uint64(uid), 10) }
