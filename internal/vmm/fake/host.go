package fake

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/space-sandbox/space/internal/agent"
	"github.com/space-sandbox/space/internal/confine"
	"github.com/space-sandbox/space/internal/rpc"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/vmm"
	"github.com/space-sandbox/space/internal/vmm/fake/fakeagent"
)

// Host has machines inside this process. It stands for the host in a test: Drivers come and go, as nodes do, and find
// each other's machines in it. Safe for concurrent use.
type Host struct {
	boot string // stands for the host's boot id

	mu     sync.Mutex
	serial uint64
	locals map[uint64]*local
}

// NewHost makes a Host without machines.
func NewHost() *Host {
	return &Host{boot: string(sandbox.NewID()), locals: map[uint64]*local{}}
}

// End ends a machine behind its driver's back, as a crash of its VMM would, and returns when it has ended. It is an
// error when there is none with this state.
func (h *Host) End(state vmm.State) error {
	l, err := h.find(state.Process)
	if err != nil {
		return err
	}
	l.end("ended from outside")
	<-l.done
	return nil
}

// Close ends all machines.
func (h *Host) Close() {
	h.mu.Lock()
	locals := make([]*local, 0, len(h.locals))
	for _, l := range h.locals {
		locals = append(locals, l)
	}
	h.mu.Unlock()
	for _, l := range locals {
		l.end("the host was closed")
		<-l.done
	}
}

// local is an agent inside this process.
type local struct {
	id     confine.Identity
	server *http.Server
	gate   *gate
	done   chan struct{}

	mu  sync.Mutex
	how string
}

func (h *Host) start(spec vmm.Spec, p private, listener *net.UnixListener, log *slog.Logger) (body, error) {
	l := &local{gate: newGate(), done: make(chan struct{})}
	config := fakeagent.Config{Token: spec.AgentToken, Version: "fake", Root: p.Root, MemoryMiB: spec.MemoryMiB, Logger: log,
		PowerOff: func() {
			if err := os.WriteFile(fakeagent.PoweredOff(p.Root), nil, 0o600); err != nil {
				log.Warn("the power-off is not noted", "error", err)
			}
			l.end("powered off")
		}}
	if os.Getuid() == 0 {
		config.Only = &agent.Only{UID: spec.UID, GID: spec.GID}
	}
	server, err := fakeagent.New(config)
	if err != nil {
		return nil, err
	}
	l.server = &http.Server{Handler: server.Handler(), Protocols: rpc.Protocols(), ReadHeaderTimeout: time.Minute}
	h.mu.Lock()
	h.serial++
	l.id = confine.Identity{PID: os.Getpid(), StartTime: h.serial, BootID: h.boot, UID: spec.UID}
	h.locals[h.serial] = l
	h.mu.Unlock()
	go func() {
		defer close(l.done)
		defer h.forget(l)
		defer server.Close()
		if err := l.server.Serve(gatedListener{listener, l.gate}); !errors.Is(err, http.ErrServerClosed) {
			l.end(err.Error())
		}
	}()
	return l, nil
}

func (h *Host) forget(l *local) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.locals, l.id.StartTime)
}

func (h *Host) find(id confine.Identity) (*local, error) {
	if id.BootID != h.boot {
		return nil, fmt.Errorf("a machine of another host: %w", confine.ErrGone)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.locals[id.StartTime]
	if l == nil || l.id != id {
		return nil, confine.ErrGone
	}
	return l, nil
}

func (h *Host) adopt(id confine.Identity) (body, error) {
	l, err := h.find(id)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// end stops the agent at once, as a real machine is stopped; the first one says why.
func (l *local) end(how string) {
	l.mu.Lock()
	if l.how == "" {
		l.how = how
	}
	l.mu.Unlock()
	_ = l.server.Close() // what it says about single connections helps nobody
}

func (l *local) identity() confine.Identity      { return l.id }
func (l *local) ended() <-chan struct{}          { return l.done }
func (l *local) oom() (bool, error)              { return false, nil }
func (l *local) sweep(ctx context.Context) error { return endUID(ctx, l.id.UID) }
func (l *local) close() error                    { return nil }

func (l *local) pause(ctx context.Context) error {
	l.gate.shut()
	return stopUID(ctx, l.id.UID)
}

func (l *local) resume(ctx context.Context) error {
	if err := continueUID(ctx, l.id.UID); err != nil {
		return err
	}
	l.gate.open()
	return nil
}

func (l *local) wait(ctx context.Context) (string, error) {
	select {
	case <-l.done:
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.how, nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func (l *local) kill(ctx context.Context) error {
	l.end("killed")
	select {
	case <-l.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
