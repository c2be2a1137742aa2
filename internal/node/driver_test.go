package node

import (
	"context"
	"encoding/json"
	"errors"
	"sync"

	"github.com/space-sandbox/space/internal/confine"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/vmm"
)

// host is what outlives a node in these tests: the table of "processes" of the scripted driver.
type host struct {
	mu       sync.Mutex
	boots    int
	machines map[sandbox.ID]*machine
}

func newHost() *host { return &host{machines: map[sandbox.ID]*machine{}} }

func (h *host) running() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, m := range h.machines {
		select {
		case <-m.done:
		default:
			n++
		}
	}
	return n
}

func (h *host) get(id sandbox.ID) *machine {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.machines[id]
}

// driver is a vmm.Driver whose machines are entries of a host.
type driver struct {
	host    *host
	bootErr error
	// gate, when not nil, is received from before a machine is made.
	gate chan struct{}
	// waits, when not nil, is called by a Boot that comes to the gate, booted by one that has made its machine.
	waits, booted func()
}

func (d *driver) Name() string { return "scripted" }
func (d *driver) Probe(context.Context) vmm.Probe {
	return vmm.Probe{Available: true, Isolation: vmm.IsolationNone}
}

func (d *driver) Boot(ctx context.Context, spec vmm.Spec) (vmm.Machine, error) {
	if d.booted != nil {
		defer d.booted()
	}
	if d.gate != nil {
		if d.waits != nil {
			d.waits()
		}
		select {
		case <-d.gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if d.bootErr != nil {
		return nil, d.bootErr
	}
	private, err := json.Marshal(spec.ID)
	if err != nil {
		return nil, err
	}
	d.host.mu.Lock()
	defer d.host.mu.Unlock()
	d.host.boots++
	m := &machine{done: make(chan struct{}), stalls: make(chan struct{}, 1), state: vmm.State{Driver: d.Name(), Process: confine.Identity{PID: d.host.boots}, Private: private}}
	d.host.machines[spec.ID] = m
	return m, nil
}

func (d *driver) Adopt(_ context.Context, state vmm.State) (vmm.Machine, error) {
	var id sandbox.ID
	if err := json.Unmarshal(state.Private, &id); err != nil {
		return nil, err
	}
	m := d.host.get(id)
	if m == nil {
		return nil, vmm.ErrGone
	}
	select {
	case <-m.done:
		return nil, vmm.ErrGone
	default:
		return m, nil
	}
}

type machine struct {
	state  vmm.State
	once   sync.Once
	done   chan struct{}
	exit   vmm.Exit
	stalls chan struct{}

	mu      sync.Mutex
	paused  bool
	changes int
	killErr error
	// obey, when not nil, is asked before each Pause (true) and Resume (false); on an error nothing changes.
	obey func(ctx context.Context, pause bool) error
}

func (m *machine) set(ctx context.Context, paused bool) error {
	m.mu.Lock()
	obey := m.obey
	m.mu.Unlock()
	if obey != nil {
		if err := obey(ctx, paused); err != nil {
			return err
		}
	}
	select {
	case <-m.done:
		return vmm.ErrGone
	default:
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.paused = paused
	m.changes++
	return nil
}

func (m *machine) isPaused() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.paused
}

func (m *machine) Pause(ctx context.Context) error  { return m.set(ctx, true) }
func (m *machine) Resume(ctx context.Context) error { return m.set(ctx, false) }
func (m *machine) Stalled() <-chan struct{}         { return m.stalls }

func (m *machine) end(exit vmm.Exit) {
	m.once.Do(func() {
		m.exit = exit
		close(m.done)
	})
}

func (m *machine) State() vmm.State  { return m.state }
func (m *machine) Isolation() string { return vmm.IsolationNone }
func (m *machine) Close() error      { return nil }

func (m *machine) Wait(ctx context.Context) (vmm.Exit, error) {
	select {
	case <-m.done:
		return m.exit, nil
	case <-ctx.Done():
		return vmm.Exit{}, ctx.Err()
	}
}

func (m *machine) Console(context.Context) (string, error) { return "", errors.New("no console") }

// refuseKill makes Kill fail with err; nil: not any more.
func (m *machine) refuseKill(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.killErr = err
}

func (m *machine) Kill(context.Context) error {
	m.mu.Lock()
	err := m.killErr
	m.mu.Unlock()
	if err != nil {
		return err
	}
	m.end(vmm.Exit{Reason: vmm.ExitKilled})
	return nil
}
