// Package ledger compares what one installation should have in the kernel and in its directories with what is there.
//
// What should be there is written down before it is made: node's record of a machine stands for all of the machine's
// objects, from before the first is made until the last is gone (Journal), and the installation's own objects follow from its
// data directory. What is there is looked for by the marks of its owner: the uid range in /proc, the installation's id in names
// of namespaces and control groups, the contents of those namespaces, and the installation's directories. An object without
// such a mark is not ours: it is neither counted nor touched.
//
// A sandbox that is being changed while somebody looks says nothing: its objects count as expected as far as they exist.
package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/space-sandbox/space/internal/confine"
	"github.com/space-sandbox/space/internal/datadir"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/sandboxnet"
)

// Kind says what an object is.
type Kind string

// The kinds of objects.
const (
	Process   Kind = "process"   // a VMM, or a worker that unpacks images
	UID       Kind = "uid"       // of the installation's range
	Namespace Kind = "namespace" // the network box of a sandbox
	Tap       Kind = "tap"       // an interface in such a namespace
	NFTTable  Kind = "nft_table" // packet filter rules in it
	Cgroup    Kind = "cgroup"
	Mount     Kind = "mount"  // the pool, and the names of namespaces
	Loop      Kind = "loop"   // the device under the pool
	Socket    Kind = "socket" // in the run directory
	File      Kind = "file"   // state files, disks, stages, run directories
	Port      Kind = "port"   // TCP ports that space up listens on
)

// Kinds lists all kinds, in the order in which objects are removed.
func Kinds() []Kind {
	return []Kind{Mount, Process, UID, Tap, NFTTable, Namespace, Cgroup, Loop, Socket, File, Port}
}

// OwnerImport owns what an import of an image makes. Every other owner is a sandbox id, or "" for the installation itself.
const OwnerImport = "import"

// Object is one thing that exists, or should.
type Object struct {
	Kind Kind
	// Name is for people, and unique among the objects of its kind.
	Name  string
	Owner string
	// Keep says why nobody but a human may remove it; "" when that is safe once nothing stands for it.
	Keep string

	process confine.Identity // of a Process
	// dir is set for a Socket or File that can be removed by itself: it is dir/path.
	dir  *directory
	path string
	// box is set for what belongs to a network box, and inside for the link or table in it.
	box    sandboxnet.Inspector
	inside string
}

// SandboxID is the owner when that is a sandbox, else "".
func (o Object) SandboxID() string {
	if _, err := sandbox.ParseID(o.Owner); err != nil {
		return ""
	}
	return o.Owner
}

type key struct {
	kind Kind
	name string
}

func (o Object) key() key { return key{o.Kind, o.Name} }

// Drift is an object that is there without anything that stands for it, or the other way round.
type Drift struct {
	Object
	Live bool // else: expected
}

// Tally counts the objects of one kind.
type Tally struct {
	Kind           Kind
	Live, Expected int
}

// Report is what one look found.
type Report struct {
	Tallies []Tally // one for every kind
	Drift   []Drift
}

// Config says what belongs to the installation.
type Config struct {
	Dir     *datadir.Dir
	Journal Journal
	Groups  *confine.Groups      // nil: machines have none
	Boxes   []sandboxnet.Manager // of all drivers
	// Processes says that machines or workers are processes under the installation's uids. Without it (machines inside
	// a test's process) no process is looked for.
	Processes bool
	// ReservedUIDs is how many uids at the start of the range machines never get.
	ReservedUIDs uint32
}

// Ledger looks, and repairs. Safe for concurrent use.
type Ledger struct {
	journal Journal
	sources []source
	expect  func(owner string, m Machine) expectation
	own     func() expectation
	busy    chan struct{} // of capacity 1: full while a Reconcile repairs
}

// source is one place where objects are found. Kinds that cannot be removed one by one have no remove: they go with
// their owner (Journal.Reap), or not at all.
type source struct {
	kinds  []Kind
	scan   func(ctx context.Context) ([]Object, error)
	remove func(ctx context.Context, o Object) error
}

// New makes the ledger of an installation. It looks at nothing yet.
func New(cfg Config) *Ledger {
	e := expecter{cfg: cfg, places: findPlaces(cfg.Dir)}
	return &Ledger{journal: cfg.Journal, sources: sources(cfg, e.places), expect: e.machine, own: e.installation, busy: make(chan struct{}, 1)}
}

// sources is the table of what is looked for where.
func sources(cfg Config, at places) []source {
	all := []source{
		{kinds: []Kind{Mount}, scan: mountScan(cfg, at), remove: unmount},
		{kinds: []Kind{UID}, scan: uidScan(cfg)},
		{kinds: []Kind{Loop}, scan: loopScan(cfg, at)},
		{kinds: []Kind{Socket, File}, scan: fileScan(at), remove: removeFile},
		{kinds: []Kind{Port}, scan: portScan(cfg.Dir)},
	}
	if cfg.Processes {
		all = append(all, source{kinds: []Kind{Process}, scan: processScan(cfg), remove: endProcess(cfg)})
	}
	if cfg.Groups != nil {
		all = append(all, source{kinds: []Kind{Cgroup}, scan: groupScan(cfg)})
	}
	for _, m := range cfg.Boxes {
		if box, ok := m.(sandboxnet.Inspector); ok {
			all = append(all, source{kinds: []Kind{Namespace, Tap, NFTTable}, scan: boxScan(box), remove: removeInside})
		} else {
			all = append(all, source{kinds: []Kind{File}, scan: plainBoxScan(m)})
		}
	}
	return all
}

// scan looks at everything once.
func (l *Ledger) scan(ctx context.Context) ([]Object, error) {
	var all []Object
	for _, s := range l.sources {
		found, err := s.scan(ctx)
		if err != nil {
			return nil, fmt.Errorf("look for %v: %w", s.kinds, err)
		}
		all = append(all, found...)
	}
	return all, nil
}

// removeObject removes one object by itself.
func (l *Ledger) removeObject(ctx context.Context, o Object) error {
	for _, s := range l.sources {
		if s.remove != nil && slices.Contains(s.kinds, o.Kind) && (o.Kind != File || o.dir != nil) {
			return s.remove(ctx, o)
		}
	}
	return errNotByItself
}

// errNotByItself says that an object is only removed together with its owner.
var errNotByItself = errors.New("it is removed together with its sandbox")

func sortDrift(all []Drift) {
	kinds := Kinds()
	slices.SortFunc(all, func(a, b Drift) int {
		if d := slices.Index(kinds, a.Kind) - slices.Index(kinds, b.Kind); d != 0 {
			return d
		}
		return strings.Compare(a.Name, b.Name)
	})
}
