package fake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"github.com/space-sandbox/space/internal/confine"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/vmm"
	"github.com/space-sandbox/space/internal/vmm/fake/fakeagent"
)

// body is what runs of a machine: a process, or a server inside this one.
type body interface {
	identity() confine.Identity
	// ended is closed when it does not run any more.
	ended() <-chan struct{}
	// wait blocks until then and says how, for people.
	wait(ctx context.Context) (how string, err error)
	// oom reports whether the host's kernel ended it for its memory.
	oom() (bool, error)
	// kill ends it with everything it has started.
	kill(ctx context.Context) error
	// pause stops it with everything it has started, and returns when all stands still; resume is the opposite.
	pause(ctx context.Context) error
	resume(ctx context.Context) error
	// sweep ends what it has started after its own end.
	sweep(ctx context.Context) error
	close() error
}

// machine is the vmm.Machine of the fake.
type machine struct {
	body    body
	private private
	log     *slog.Logger

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup

	change chan struct{} // of capacity 1: full while a Pause or Resume is under way

	mu     sync.Mutex
	killed bool

	end *vmm.End
}

var _ vmm.Machine = (*machine)(nil)

func newMachine(b body, p private, log *slog.Logger) *machine {
	m := &machine{body: b, private: p, log: log, change: make(chan struct{}, 1), end: vmm.NewEnd()}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.work.Go(m.awaitEnd)
	return m
}

func (m *machine) State() vmm.State {
	p, err := json.Marshal(m.private)
	if err != nil {
		panic("fake: two strings do not marshal: " + err.Error())
	}
	return vmm.State{Driver: driverName, Process: m.body.identity(), Private: p}
}

func (m *machine) Isolation() string { return vmm.IsolationNone }

// Console is empty: there is none.
func (m *machine) Console(context.Context) (string, error) { return "", nil }

func (m *machine) Wait(ctx context.Context) (vmm.Exit, error) { return m.end.Wait(ctx, m.ctx) }

// Pause stops the agent and every process of the machine.
func (m *machine) Pause(ctx context.Context) error { return m.turn(ctx, m.body.pause) }

// Resume lets them go on.
func (m *machine) Resume(ctx context.Context) error { return m.turn(ctx, m.body.resume) }

// Stalled is nil: there is no disk.
func (m *machine) Stalled() <-chan struct{} { return nil }

// turn does one change after the other.
func (m *machine) turn(ctx context.Context, change func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, vmm.ChangeTime)
	defer cancel()
	select {
	case m.change <- struct{}{}:
		defer func() { <-m.change }()
	case <-ctx.Done():
		return changeError(ctx.Err())
	}
	err := change(ctx)
	select {
	case <-m.body.ended():
		return fmt.Errorf("fake: %w", vmm.ErrGone)
	default:
	}
	if err != nil {
		return changeError(err)
	}
	return nil
}

func (m *machine) Kill(ctx context.Context) error {
	select {
	case <-m.body.ended(): // too late to be the reason
	default:
		m.mu.Lock()
		m.killed = true
		m.mu.Unlock()
	}
	if err := m.body.kill(ctx); err != nil {
		return fmt.Errorf("fake: %w", err)
	}
	return m.clean(ctx)
}

func (m *machine) Close() error {
	m.cancel()
	err := m.body.close()
	m.work.Wait()
	return err
}

func (m *machine) awaitEnd() {
	how, err := m.body.wait(m.ctx)
	if err != nil {
		return // closed
	}
	exit := m.reason(how)
	if err := m.clean(m.ctx); err != nil && m.ctx.Err() == nil {
		m.log.Warn("something of a fake machine stays behind", "error", err)
	}
	m.end.Set(exit)
}

func (m *machine) reason(how string) vmm.Exit {
	m.mu.Lock()
	killed := m.killed
	m.mu.Unlock()
	if _, err := os.Lstat(fakeagent.PoweredOff(m.private.Root)); err == nil {
		return vmm.Exit{Reason: sandbox.ReasonGuestReboot, Detail: "the fake guest was told to power off"}
	}
	if killed {
		return vmm.Exit{Reason: vmm.ExitKilled}
	}
	oom, err := m.body.oom()
	if err != nil {
		m.log.Warn("whether memory ran out is not known", "error", err)
	}
	if oom {
		return vmm.Exit{Reason: sandbox.ReasonOOM, Detail: "the host's kernel ended a process at the memory limit of the machine"}
	}
	return vmm.Exit{Reason: sandbox.ReasonVMMExit, Detail: "the agent ended: " + how}
}

// clean removes what is left of a machine that has ended. Several may do so at once.
func (m *machine) clean(ctx context.Context) error {
	if err := m.body.sweep(ctx); err != nil {
		return err
	}
	return errors.Join(removeIfThere(m.private.Socket), os.RemoveAll(m.private.Root))
}
