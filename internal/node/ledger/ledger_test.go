package ledger

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/space-sandbox/space/internal/confine"
	"github.com/space-sandbox/space/internal/sandbox"
)

// world is a host and a journal that a test scripts. It is what a Ledger looks at.
type world struct {
	mu      sync.Mutex
	live    []Object
	owners  map[string]Machine
	uids    map[uint32]string
	held    map[string]bool // somebody else is at these owners
	reaped  []string
	removed []string
	failing map[string]error // by name: removing it fails
	// onScan runs in every look, after it has begun.
	onScan func(n int)
	scans  int
	// onHold runs when an owner is held, before what stands is read.
	onHold func(owner string)
}

func newWorld() *world {
	return &world{owners: map[string]Machine{}, uids: map[uint32]string{}, held: map[string]bool{}, failing: map[string]error{}}
}

// ledger expects of a running machine a cgroup and a disk, of a kept one the disk, of the installation a port.
func (w *world) ledger() *Ledger {
	expect := func(owner string, m Machine) expectation {
		disk := Object{Kind: File, Name: "disk " + owner, Owner: owner}
		switch m.Stage {
		case Running:
			return expectation{must: []Object{disk, {Kind: Cgroup, Name: "vm " + owner, Owner: owner}},
				may: func(o Object) bool { return o.Kind == Process && m.Parts.Family }}
		case Kept:
			return expectation{must: []Object{disk}}
		default:
			return expectation{}
		}
	}
	own := func() expectation { return expectation{must: []Object{{Kind: Port, Name: "tcp 1"}}} }
	all := source{kinds: Kinds(), scan: w.scan, remove: w.remove}
	return &Ledger{journal: w, sources: []source{all}, expect: expect, own: own, busy: make(chan struct{}, 1)}
}

func (w *world) scan(context.Context) ([]Object, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.scans++; w.onScan != nil {
		w.onScan(w.scans)
	}
	return append(slices.Clone(w.live), Object{Kind: Port, Name: "tcp 1"}), nil
}

func (w *world) remove(_ context.Context, o Object) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.failing[o.Name]; err != nil {
		return err
	}
	w.removed = append(w.removed, o.Name)
	w.live = slices.DeleteFunc(w.live, func(l Object) bool { return l.key() == o.key() })
	return nil
}

func (w *world) Snapshot() Snapshot {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := Snapshot{Owners: map[string]Machine{}, UIDs: w.uids}
	for id, m := range w.owners {
		s.Owners[id] = m
	}
	return s
}

func (w *world) Hold(owner string, fn func(Machine) error) (bool, error) {
	if w.held[owner] {
		return true, nil
	}
	if w.onHold != nil {
		w.onHold(owner)
	}
	return false, fn(w.owners[owner])
}

// Reap removes what the machine does not stand for.
func (w *world) Reap(_ context.Context, owner string, m Machine) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.failing["reap "+owner]; err != nil {
		return err
	}
	w.reaped = append(w.reaped, owner)
	w.live = slices.DeleteFunc(w.live, func(o Object) bool { return o.Owner == owner && (m.Stage == None || o.Kind != File) })
	return nil
}

func (w *world) Claim(uint32) (func(), bool) { return func() {}, true }

// machine adds what a machine at a stage has.
func (w *world) machine(stage Stage) string {
	id := string(sandbox.NewID())
	w.owners[id] = Machine{Stage: stage}
	w.live = append(w.live, Object{Kind: File, Name: "disk " + id, Owner: id}, Object{Kind: Cgroup, Name: "vm " + id, Owner: id})
	return id
}

func (w *world) names(t *testing.T) []string {
	t.Helper()
	report, err := w.ledger().Count(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range report.Drift {
		prefix := "live "
		if !d.Live {
			prefix = "expected "
		}
		names = append(names, prefix+d.Name)
	}
	return names
}

func TestCount(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.machine(Running)
	w.machine(Changing) // has everything, but says nothing
	kept := w.machine(Kept)
	lost := w.machine(None)
	bare := string(sandbox.NewID())
	w.owners[bare] = Machine{Stage: Running}
	want := []string{"live vm " + kept, "live vm " + lost, "expected vm " + bare, "live disk " + lost, "expected disk " + bare}
	got := w.names(t)
	slices.Sort(want)
	slices.Sort(got)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("drift (-want +got):\n%s", d)
	}
	report, err := w.ledger().Count(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	tallies := map[Kind]Tally{}
	for _, n := range report.Tallies {
		tallies[n.Kind] = n
	}
	// Live: four machines. Expected: the running one, the changing one as far as it goes, and the one that has nothing.
	if got, want := tallies[Cgroup], (Tally{Kind: Cgroup, Live: 4, Expected: 3}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got, want := tallies[File], (Tally{Kind: File, Live: 4, Expected: 4}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got, want := tallies[Port], (Tally{Kind: Port, Live: 1, Expected: 1}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if len(report.Tallies) != len(Kinds()) {
		t.Errorf("%d tallies", len(report.Tallies))
	}
}

// TestCountWhileThingsChange: a machine that is made, changed or removed during a look is no drift, and neither is what
// is there in one look only.
func TestCountWhileThingsChange(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(w *world){
		"made": func(w *world) {
			id := string(sandbox.NewID())
			w.onScan = func(int) {
				w.owners[id] = Machine{Stage: Running}
				w.live = []Object{{Kind: Cgroup, Name: "vm " + id, Owner: id}, {Kind: File, Name: "disk " + id, Owner: id}}
			}
		},
		"gone after the look began": func(w *world) {
			id := w.machine(Running)
			w.onScan = func(int) { delete(w.owners, id); w.live = nil }
		},
		"there for one look": func(w *world) {
			w.onScan = func(n int) {
				w.live = nil
				if n == 1 {
					w.live = []Object{{Kind: Cgroup, Name: "vm", Owner: string(sandbox.NewID())}}
				}
			}
		},
		"appears in the second look": func(w *world) {
			w.live = []Object{{Kind: Cgroup, Name: "vm", Owner: string(sandbox.NewID())}}
			w.onScan = func(n int) {
				if n == 2 {
					w.live = []Object{{Kind: Cgroup, Name: "vm", Owner: string(sandbox.NewID())}}
					w.live[0].Name = "another"
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld()
			change(w)
			report, err := w.ledger().Count(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if len(report.Drift) > 0 {
				t.Errorf("drift: %+v", report.Drift)
			}
			for _, n := range report.Tallies {
				if n.Live != n.Expected {
					t.Errorf("%+v", n)
				}
			}
		})
	}
}

// TestProcessesAreFoundByUID: a process belongs to whoever has its uid, and a family may have any number.
func TestProcessesAreFoundByUID(t *testing.T) {
	t.Parallel()
	w := newWorld()
	alone, family := w.machine(Running), w.machine(Running)
	w.owners[family] = Machine{Stage: Running, Parts: Parts{Family: true}}
	w.uids[7], w.uids[8] = alone, family
	for name, uid := range map[string]uint32{"child": 8, "grandchild": 8, "odd": 7, "nobody's": 9} {
		w.live = append(w.live, Object{Kind: Process, Name: name, process: confine.Identity{UID: uid}})
	}
	if d := cmp.Diff([]string{"live nobody's", "live odd"}, w.names(t)); d != "" {
		t.Errorf("drift (-want +got):\n%s", d)
	}
}

func repairs(t *testing.T, w *world, dry bool) map[string]Repair {
	t.Helper()
	all, err := w.ledger().Reconcile(t.Context(), dry)
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]Repair{}
	for _, r := range all {
		byName[r.Name] = r
	}
	return byName
}

func TestReconcile(t *testing.T) {
	t.Parallel()
	w := newWorld()
	running, kept, lost := w.machine(Running), w.machine(Kept), w.machine(None)
	w.live = append(w.live, Object{Kind: Cgroup, Name: "odd", Keep: "look at it"}, Object{Kind: Socket, Name: "sock"},
		Object{Kind: Tap, Name: "tap9", Owner: running})
	w.owners["bare"] = Machine{Stage: Running}
	dry := repairs(t, w, true)
	if w.reaped != nil || w.removed != nil {
		t.Errorf("a dry run removed %v and %v", w.reaped, w.removed)
	}
	for name, action := range map[string]string{"odd": ActionReport, "sock": ActionRemove, "tap9": ActionRemove, "vm " + kept: ActionRemove,
		"vm " + lost: ActionRemove, "disk " + lost: ActionRemove, "disk bare": ActionReport, "vm bare": ActionReport} {
		if r := dry[name]; r.Action != action || r.Done || (r.Reason == "") != (action == ActionRemove) {
			t.Errorf("dry run, %s: %+v", name, r)
		}
		delete(dry, name)
	}
	if len(dry) > 0 {
		t.Errorf("also: %+v", dry)
	}
	for name, r := range repairs(t, w, false) {
		if r.Done != (r.Action == ActionRemove) {
			t.Errorf("%s: %+v", name, r)
		}
	}
	want := []string{"disk " + running, "vm " + running, "disk " + kept, "odd"}
	var left []string
	for _, o := range w.live {
		left = append(left, o.Name)
	}
	if d := cmp.Diff(want, left); d != "" {
		t.Errorf("left (-want +got):\n%s", d)
	}
}

// TestReconcileLooksAgain: between the look and the removal an owner may have come to life, or be at work.
func TestReconcileLooksAgain(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(w *world, id string){
		"it runs by now":    func(w *world, id string) { w.onHold = func(string) { w.owners[id] = Machine{Stage: Running} } },
		"it changes":        func(w *world, id string) { w.onHold = func(string) { w.owners[id] = Machine{Stage: Changing} } },
		"somebody is at it": func(w *world, id string) { w.held[id] = true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld()
			id := w.machine(None)
			delete(w.owners, id)
			change(w, id)
			for _, r := range repairs(t, w, false) {
				if r.Done || r.Reason == "" {
					t.Errorf("%+v", r)
				}
			}
			if len(w.live) != 2 {
				t.Errorf("left: %+v", w.live)
			}
			if name != "it runs by now" && len(w.reaped)+len(w.removed) > 0 {
				t.Errorf("reaped %v, removed %v", w.reaped, w.removed)
			}
		})
	}
}

// TestReconcileUnmountsFirst: files are not removed while something that may be others' is mounted among them.
func TestReconcileUnmountsFirst(t *testing.T) {
	t.Parallel()
	w := newWorld()
	id := w.machine(None)
	delete(w.owners, id)
	w.live = append(w.live, Object{Kind: Mount, Name: "mnt", Owner: id})
	w.failing["mnt"] = errors.New("it is busy")
	for _, r := range repairs(t, w, false) {
		if r.Done {
			t.Errorf("%+v", r)
		}
	}
	if len(w.reaped) > 0 || len(w.live) != 3 {
		t.Errorf("reaped %v, left %+v", w.reaped, w.live)
	}
	delete(w.failing, "mnt")
	w.failing["reap "+id] = errors.New("no luck")
	if r := repairs(t, w, false)["disk "+id]; r.Done || r.Reason != "no luck" {
		t.Errorf("%+v", r)
	}
	delete(w.failing, "reap "+id)
	for _, r := range repairs(t, w, false) {
		if !r.Done {
			t.Errorf("%+v", r)
		}
	}
	if len(w.live) != 0 {
		t.Errorf("left: %+v", w.live)
	}
}
