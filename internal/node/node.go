// Package node is the process that is root on one machine: it makes microVMs from templates, keeps them over its own
// death, and removes them without a trace. It takes ids, digests and bounded numbers; it never opens a connection into
// a guest and parses nothing that a guest or tenant wrote.
//
// Every machine has one record (a state file) that is written before the first of its parts is made and removed after
// the last is gone. At start node reads the records: a machine that runs is adopted, one that was half made or half
// deleted is cleaned up, and parts of this installation that no record names are reaped.
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/space-sandbox/space/internal/confine"
	"github.com/space-sandbox/space/internal/datadir"
	"github.com/space-sandbox/space/internal/node/ledger"
	"github.com/space-sandbox/space/internal/pool"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/sandboxnet"
	"github.com/space-sandbox/space/internal/vmm"
)

// Backend is a driver with what its machines need around them.
type Backend struct {
	Driver  vmm.Driver
	Network sandboxnet.Manager
	// Guest gives kernel and initramfs; nil for the fake, which boots nothing.
	Guest Guest
	// Parts is what a running machine of the driver has besides disk, network and control group.
	Parts ledger.Parts
}

// Guest opens what a machine boots. The caller closes the files.
type Guest interface {
	Open(id sandbox.ID, agentToken string) (kernel, initrd *os.File, args string, err error)
}

// Deps is what a Node is made of.
type Deps struct {
	Dir      *datadir.Dir
	Pool     *pool.Pool
	Groups   *confine.Groups // nil: machines run without limits (tests with the fake)
	Backends []Backend
	// DefaultDriver is used when a request names none; it must be one of Backends.
	DefaultDriver string
	Probes        map[string]vmm.Probe // by driver name
	// Worker unpacks images; nil: none can be imported.
	Worker Worker
	Logger *slog.Logger
	BootID string // of this host boot
	// ReserveBytes is what stays free of the pool; 0 chooses by its size.
	ReserveBytes uint64
	// Usage reads the pool's space; nil asks Pool.
	Usage func(context.Context) (pool.Usage, error)
}

// Node serves one machine. Safe for concurrent use.
type Node struct {
	deps     Deps
	records  *recordStore
	uids     *uidRange
	hub      *hub
	metrics  *metrics
	reserve  *reserve
	ledger   *ledger.Ledger
	instance string

	templates chan struct{} // of capacity 1: full while templates are imported or deleted

	mu       sync.Mutex // guards machines
	machines map[sandbox.ID]*entry

	life   context.Context // ends with Close; watchers hang on it
	cancel context.CancelFunc
	starts sync.Mutex // held while something is added to wg, and while life ends: nothing is added after it
	wg     sync.WaitGroup
}

// New reads the records, adopts what runs and cleans up what does not. It returns when the truth is known.
func New(ctx context.Context, deps Deps) (*Node, error) {
	if _, ok := backend(deps.Backends, deps.DefaultDriver); !ok {
		return nil, fmt.Errorf("default driver %q is not among the backends", deps.DefaultDriver)
	}
	records, err := openRecords(deps.Dir.MachinesDir())
	if err != nil {
		return nil, err
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	n := &Node{
		deps: deps, records: records, hub: newHub(), instance: string(sandbox.NewID()),
		uids:      newUIDRange(deps.Dir.Installation.UIDBase, deps.Dir.Installation.UIDCount),
		templates: make(chan struct{}, 1), machines: map[sandbox.ID]*entry{}, life: life, cancel: cancel,
	}
	if deps.Usage == nil {
		n.deps.Usage = deps.Pool.Usage
	}
	n.reserve = &reserve{usage: n.deps.Usage, fixed: deps.ReserveBytes, patience: stallPatience}
	n.metrics = newMetrics(n)
	if err := os.MkdirAll(n.deps.Dir.RunDir()+"/vm", 0o700); err != nil {
		return nil, errors.Join(fmt.Errorf("run directory: %w", err), n.Close())
	}
	n.ledger = newLedger(n)
	if err := n.sweepImports(ctx); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	if _, _, err := n.reserve.look(ctx); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	if err := n.recover(ctx); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	n.background(n.watchPool)
	return n, nil
}

// background runs f beside the rest until node is closed; Close waits for it. A closed node does not begin it.
func (n *Node) background(f func()) {
	n.starts.Lock()
	defer n.starts.Unlock()
	if n.life.Err() == nil {
		n.wg.Go(f)
	}
}

// closePatience bounds how long Close waits for operations that end with node.
const closePatience = 10 * time.Second

// Close releases what this process holds of the machines; the machines go on.
func (n *Node) Close() error {
	n.starts.Lock()
	n.cancel()
	n.starts.Unlock()
	n.wg.Wait()
	n.mu.Lock()
	all := slices.Collect(maps.Values(n.machines))
	n.mu.Unlock()
	limit := time.After(closePatience)
	var errs []error
	for _, e := range all {
		select {
		case e.lock <- struct{}{}: // and is not given back: nothing happens to it any more
		case <-limit:
			return fmt.Errorf("an operation on a machine has not ended within %s", closePatience)
		}
		errs = append(errs, e.letGo())
	}
	return errors.Join(append(errs, n.records.close())...)
}

func backend(all []Backend, name string) (Backend, bool) {
	i := slices.IndexFunc(all, func(b Backend) bool { return b.Driver.Name() == name })
	if i < 0 {
		return Backend{}, false
	}
	return all[i], true
}

// entry is what node knows of one sandbox. Its lock is held through a whole ensure or delete.
type entry struct {
	lock chan struct{} // of capacity 1: full while held
	refs int           // holders and waiters; guarded by Node.mu

	// Guarded by lock.
	rec     *record // nil: nothing exists
	machine vmm.Machine
	box     sandboxnet.Box
	vcpus   vcpus
	stalled time.Time // when the host last had no space for its disk
	// removing: a goroutine goes on with a removal that has failed.
	removing bool

	// agent is how the gateway reaches the machine; guarded by mu, so that fd.sock never waits for an operation.
	mu    sync.Mutex
	agent sandboxnet.Box
	// act ends the Pause or Resume under way, nil when there is none; deletes counts the deletes that wait, for none of them
	// ever waits for a VMM that does not answer. Guarded by mu.
	act     context.CancelFunc
	deletes int
	// settling: a goroutine makes the vCPUs do what the record wants; stir makes it look again. Guarded by mu.
	settling bool
	stir     chan struct{} // of capacity 1
}

func newEntry() *entry {
	return &entry{lock: make(chan struct{}, 1), stir: make(chan struct{}, 1)}
}

func (e *entry) setAgent(b sandboxnet.Box) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.agent = b
}

// letGo releases what this process holds of a machine and its network; both go on if they exist. The caller holds the
// entry.
func (e *entry) letGo() error {
	var errs []error
	if e.machine != nil {
		errs = append(errs, e.machine.Close())
		e.machine = nil
	}
	if e.box != nil {
		errs = append(errs, e.box.Close())
		e.box = nil
	}
	return errors.Join(errs...)
}

// entryOf returns the entry of id, which stays until drop or release.
func (n *Node) entryOf(id sandbox.ID) *entry {
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.find(id)
	e.refs++
	return e
}

// find returns the entry of id, which is made when there is none; n.mu is held.
func (n *Node) find(id sandbox.ID) *entry {
	e := n.machines[id]
	if e == nil {
		e = newEntry()
		n.machines[id] = e
	}
	return e
}

// acquire returns the locked entry of id.
func (n *Node) acquire(ctx context.Context, id sandbox.ID) (*entry, error) {
	e := n.entryOf(id)
	select {
	case e.lock <- struct{}{}:
		return e, nil
	case <-ctx.Done():
		n.drop(id, e)
		return nil, fmt.Errorf("wait for sandbox %s: %w", id, ctx.Err())
	}
}

// release unlocks an acquired entry.
func (n *Node) release(id sandbox.ID, e *entry) {
	gone := e.rec == nil
	<-e.lock
	if gone {
		n.drop(id, e)
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	e.refs--
}

// drop forgets an entry that nobody holds or waits for and that stands for nothing.
func (n *Node) drop(id sandbox.ID, e *entry) {
	n.mu.Lock()
	defer n.mu.Unlock()
	e.refs--
	if e.refs > 0 {
		return
	}
	select {
	case e.lock <- struct{}{}: // nobody holds it: rec may be read
		if e.rec == nil {
			delete(n.machines, id)
		}
		<-e.lock
	default:
	}
}

// AgentSocket makes a socket to the agent of a running machine, for fd.sock.
func (n *Node) AgentSocket(ctx context.Context, id sandbox.ID) (sandboxnet.AgentSocket, error) {
	n.mu.Lock()
	e := n.machines[id]
	n.mu.Unlock()
	if e != nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.agent != nil {
			return e.agent.AgentSocket(ctx)
		}
	}
	return sandboxnet.AgentSocket{}, &sandbox.Error{Code: sandbox.CodeNotFound, Message: "no such machine runs on this node", Cause: string(id)}
}
