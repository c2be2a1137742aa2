package agent

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

const maxErrorMessage = 1024

// table holds all processes this agent knows.
type table struct {
	users     userDatabase
	spool     *spool
	reaper    Reaper
	userGroup func() int
	drainTime time.Duration
	capacity  int
	specLimit int64 // bytes of all specifications that wait for their start

	goroutines sync.WaitGroup

	mu        sync.Mutex
	closed    bool
	processes map[sandbox.ProcessID]*process
	watchers  map[*watcher]struct{}
	lastSeq   int64
	specBytes int64
}

func newTable(cfg Config) *table {
	l := cfg.Limits
	return &table{
		users: userDatabase{dir: cfg.Etc, only: cfg.Only}, spool: newSpool(l.SpoolPerStream, l.SpoolTotal, l.ReaderPatience),
		reaper: cfg.Reaper, userGroup: cfg.Machine.UserGroup, drainTime: l.DrainTime,
		capacity: l.Processes, specLimit: max(l.SpoolTotal, maxRequestBytes),
		processes: map[sandbox.ProcessID]*process{}, watchers: map[*watcher]struct{}{},
	}
}

// create registers a process. The same id with the same specification is the same process.
func (t *table) create(id sandbox.ProcessID, spec *agentv1.ProcessSpec) (*process, error) {
	if err := checkSpec(spec); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if p, ok := t.processes[id]; ok {
		if p.digest != specDigest(spec) {
			return nil, &sandbox.Error{Code: sandbox.CodeIdempotencyConflict,
				Message: "the process id belongs to a process with another specification",
				Cause:   string(id), Remedy: "use a new process id"}
		}
		return p, nil
	}
	if t.closed {
		return nil, sandbox.Errorf(sandbox.CodeUnavailable, "the agent is ending")
	}
	p := newProcess(id, spec, nil)
	if t.specBytes+p.specSize > t.specLimit {
		return nil, full("the specifications of processes that wait for their start are too large together")
	}
	if len(t.processes) >= t.capacity && !t.evict() {
		return nil, full(fmt.Sprintf("%d processes run or wait for their start", len(t.processes)))
	}
	p.output = t.spool.newLog()
	t.lastSeq++
	p.seq = t.lastSeq
	t.specBytes += p.specSize
	t.processes[id] = p
	t.markChanged(p)
	return p, nil
}

func full(cause string) error {
	return &sandbox.Error{Code: sandbox.CodeCapacity, Message: "the machine takes no more processes", Cause: cause,
		Remedy: "end some of them, or start those that wait"}
}

// evict forgets the oldest ended process, an acknowledged one if there is any. Call with the lock.
func (t *table) evict() bool {
	var victim *process
	var acked bool
	for _, p := range t.processes {
		if !p.ended() {
			continue
		}
		a := p.isAcked()
		if victim == nil || a && !acked || a == acked && p.seq < victim.seq {
			victim, acked = p, a
		}
	}
	if victim == nil {
		return false
	}
	delete(t.processes, victim.id)
	victim.output.forget()
	return true
}

// releaseSpec stops counting the specification of p.
func (t *table) releaseSpec(p *process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.specBytes -= p.specSize
}

// ack lets an ended process be forgotten, and gives up one that was not started.
func (t *table) ack(p *process, why error) {
	p.start.Do(func() { t.giveUp(p, why) })
	p.setAcked()
}

var (
	errGivenUp = startErrorf(string(sandbox.CodeCanceled), "it was given up before its start")
	errExpired = startErrorf(string(sandbox.CommandExpired), "nobody has attached to it in time")
)

// giveUp is what start does to a process that is not to be started any more.
func (t *table) giveUp(p *process, why error) {
	p.spec = nil
	t.releaseSpec(p)
	t.fail(p, why)
}

// get finds a process.
func (t *table) get(id string) (*process, error) {
	pid, err := sandbox.ParseProcessID(id)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if p, ok := t.processes[pid]; ok {
		return p, nil
	}
	return nil, &sandbox.Error{Code: sandbox.CodeNotFound, Message: "this machine knows no such process",
		Cause: "it was never created, or was forgotten after its end", Remedy: "create it, or look at the record"}
}

// close kills all process groups and waits until their sessions have ended.
func (t *table) close() {
	t.mu.Lock()
	t.closed = true
	all := make([]*process, 0, len(t.processes))
	for _, p := range t.processes {
		all = append(all, p)
	}
	t.mu.Unlock()
	for _, p := range all {
		p.start.Do(func() { t.giveUp(p, errEnding) })
		_ = p.signal(unix.SIGKILL) // refused when it does not run, which is as well
	}
	t.goroutines.Wait()
}

// changed tells all watchers about p.
func (t *table) changed(p *process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.markChanged(p)
}

func (t *table) markChanged(p *process) {
	for w := range t.watchers {
		w.mark(p)
	}
}

// watch calls send with every process that is not acknowledged, then with nil, then with each one that has changed,
// until ctx is done or send fails. Changes that send does not keep up with are merged: it always gets the newest
// state.
func (t *table) watch(ctx context.Context, send func(*agentv1.Process) error) error {
	w := &watcher{limit: 2 * t.capacity, dirty: map[*process]struct{}{}, wake: make(chan struct{}, 1)}
	t.mu.Lock()
	t.watchers[w] = struct{}{}
	for _, p := range t.processes {
		if !p.isAcked() {
			w.mark(p)
		}
	}
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.watchers, w)
	}()
	for synced := false; ; {
		changed, err := w.take()
		if err != nil {
			return err
		}
		for _, p := range changed {
			if err := send(p.snapshot()); err != nil {
				return err
			}
		}
		if !synced {
			synced = true
			if err := send(nil); err != nil {
				return err
			}
		}
		select {
		case <-w.wake:
		case <-ctx.Done():
			return stoppedError(ctx)
		}
	}
}

// specDigest identifies a specification.
func specDigest(spec *agentv1.ProcessSpec) [32]byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(spec)
	if err != nil { // invalid UTF-8 in a string, which the codec has refused before
		return [32]byte{}
	}
	return sha256.Sum256(b)
}

// cleanText makes valid UTF-8 of at most limit bytes.
func cleanText(s string, limit int) string {
	return strings.ToValidUTF8(s[:min(len(s), limit)], "")
}
