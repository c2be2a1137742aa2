package qemu

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
	"github.com/space-sandbox/space/internal/vmm/qemu/qmp"
)

// Machine is the vmm.Machine of QEMU.
type Machine struct {
	proc    *confine.Process
	private private
	log     *slog.Logger
	stderr  *os.File // nil when another run of ours has started the process

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup

	events     chan qmp.Event
	eventLines int  // logged of them; the monitor's alone
	stalled    bool // the guest stands still because of its disk; the monitor's alone

	change chan struct{} // of capacity 1: full while something may start or stop the vCPUs
	wanted wish          // guarded by change
	stalls chan struct{}
	times  times

	redial chan struct{} // of capacity 1: somebody waits for a connection

	mu     sync.Mutex
	conn   *qmp.Conn     // nil while there is none
	dialed chan struct{} // closed when conn is set the next time
	tail   []byte        // newest part of the console
	killed bool
	ended  string // what the guest did, when it ended itself

	end *vmm.End
}

var _ vmm.Machine = (*Machine)(nil)

func newMachine(proc *confine.Process, p private, log *slog.Logger) *Machine {
	m := &Machine{proc: proc, private: p, log: log, events: make(chan qmp.Event, 64), end: vmm.NewEnd(),
		change: make(chan struct{}, 1), stalls: make(chan struct{}, 1), redial: make(chan struct{}, 1), dialed: make(chan struct{}),
		times: times{change: vmm.ChangeTime, retry: retryPause}}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	return m
}

// supervise starts what runs beside a machine: the one that waits for its end and the one that listens to QEMU.
func (m *Machine) supervise() {
	m.work.Go(m.awaitEnd)
	m.work.Go(m.monitor)
}

// State is what Adopt needs.
func (m *Machine) State() vmm.State {
	p, err := json.Marshal(m.private)
	if err != nil {
		panic("qemu: a string and a bool do not marshal: " + err.Error())
	}
	return vmm.State{Driver: driverName, Process: m.proc.Identity(), Private: p}
}

// Isolation is how the vCPUs run.
func (m *Machine) Isolation() string {
	if m.private.KVM {
		return vmm.IsolationKVM
	}
	return vmm.IsolationEmulated
}

// Wait blocks until the machine has ended, Close is called or ctx is done.
func (m *Machine) Wait(ctx context.Context) (vmm.Exit, error) { return m.end.Wait(ctx, m.ctx) }

// Kill ends the machine and returns when it is gone, with its process reaped and its socket removed.
func (m *Machine) Kill(ctx context.Context) error {
	select {
	case <-m.proc.Done(): // too late to be the reason
	default:
		m.mu.Lock()
		m.killed = true
		m.mu.Unlock()
	}
	if err := m.proc.Kill(ctx); err != nil {
		return fmt.Errorf("qemu: %w", err)
	}
	return m.removeSocket()
}

// Close gives up the handle; the machine goes on.
func (m *Machine) Close() error {
	m.cancel()
	m.mu.Lock()
	if m.conn != nil {
		m.conn.Close()
	}
	m.mu.Unlock()
	err := m.proc.Close()
	m.work.Wait()
	if m.stderr != nil {
		err = errors.Join(err, m.stderr.Close())
		m.stderr = nil
	}
	return err
}

// awaitEnd says how the machine ended.
func (m *Machine) awaitEnd() {
	status, err := m.proc.Wait(m.ctx)
	if err != nil {
		return // closed
	}
	if err := m.removeSocket(); err != nil {
		m.log.Warn("the control socket stays behind", "error", err)
	}
	m.end.Set(m.reason(status))
}

func (m *Machine) removeSocket() error {
	if err := os.Remove(m.private.Socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("qemu: control socket: %w", err)
	}
	return nil
}

func (m *Machine) reason(status confine.Status) vmm.Exit {
	m.mu.Lock()
	killed, ended, console := m.killed, m.ended, string(m.tail)
	m.mu.Unlock()
	switch {
	case ended != "":
		return exit(sandbox.ReasonGuestReboot, ended, console)
	case killed:
		return vmm.Exit{Reason: vmm.ExitKilled}
	}
	if group := m.proc.Group(); group != nil {
		oom, err := group.OOMKilled()
		if err != nil {
			m.log.Warn("whether memory ran out is not known", "error", err)
		}
		if oom {
			return exit(sandbox.ReasonOOM, "the host's kernel ended QEMU at the memory limit of the machine", "")
		}
	}
	detail := "QEMU ended: " + status.String()
	if m.stderr != nil {
		if said := messages(m.stderr); said != "" {
			detail += "; it said: " + said
		}
	}
	return exit(sandbox.ReasonVMMExit, detail, console)
}

// exit puts what is known first and the end of the console behind it, within the bound.
func exit(reason, detail, console string) vmm.Exit {
	detail = vmm.ConsoleText([]byte(detail))
	if room := vmm.MaxConsole - len(detail) - len(consoleHeading); console != "" && room > 0 {
		text := vmm.ConsoleText([]byte(console))
		detail += consoleHeading + vmm.ConsoleText([]byte(text[max(0, len(text)-room):]))
	}
	return vmm.Exit{Reason: reason, Detail: detail[:min(len(detail), vmm.MaxConsole)]}
}

const consoleHeading = "\nconsole:\n"
