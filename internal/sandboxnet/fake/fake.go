// Package fake is the network box of the fake VMM: no isolation, no interface. Its way to the agent is the unix socket
// that the fake machine listens on. Which boxes exist is kept as empty files in a directory, so that boxes outlive the
// process as real ones do.
package fake

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"

	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/sandboxnet"
)

// Config is what a Manager needs.
type Config struct {
	// Dir keeps one empty file per box; it is made when missing.
	Dir string
	// SocketPath says where the agent of a sandbox listens: <runDir>/agent.sock.
	SocketPath func(sandbox.ID) string
}

// Manager makes and finds fake boxes. Safe for concurrent use.
type Manager struct {
	root       *os.Root
	socketPath func(sandbox.ID) string
}

var _ sandboxnet.Manager = (*Manager)(nil)

// New opens (or makes) the directory of boxes. Close releases it.
func New(cfg Config) (*Manager, error) {
	if cfg.SocketPath == nil {
		return nil, errors.New("fake network: no SocketPath")
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("directory of fake networks: %w", err)
	}
	root, err := os.OpenRoot(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("directory of fake networks: %w", err)
	}
	return &Manager{root: root, socketPath: cfg.SocketPath}, nil
}

// Close releases the directory; boxes stay.
func (m *Manager) Close() error { return m.root.Close() }

// Create makes the box of a sandbox; an existing one is replaced.
func (m *Manager) Create(ctx context.Context, id sandbox.ID) (sandboxnet.Box, error) {
	if err := check(ctx, id); err != nil {
		return nil, err
	}
	f, err := m.root.OpenFile(string(id), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("make the fake network of %s: %w", id, err)
	}
	if err := f.Close(); err != nil {
		return nil, fmt.Errorf("make the fake network of %s: %w", id, err)
	}
	return m.box(id), nil
}

// Open finds the box that an earlier process made.
func (m *Manager) Open(ctx context.Context, id sandbox.ID) (sandboxnet.Box, error) {
	if err := check(ctx, id); err != nil {
		return nil, err
	}
	if _, err := m.root.Lstat(string(id)); errors.Is(err, fs.ErrNotExist) {
		return nil, &sandbox.Error{Code: sandbox.CodeNotFound, Message: "the sandbox has no network on this host",
			Remedy: "the sandbox cannot be reached any more; delete it", Err: err}
	} else if err != nil {
		return nil, fmt.Errorf("open the fake network of %s: %w", id, err)
	}
	return m.box(id), nil
}

// Delete forgets a box; it succeeds when there is none.
func (m *Manager) Delete(ctx context.Context, id sandbox.ID) error {
	if err := check(ctx, id); err != nil {
		return err
	}
	if err := m.root.Remove(string(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the fake network of %s: %w", id, err)
	}
	return nil
}

// List names the boxes that exist.
func (m *Manager) List(ctx context.Context) ([]sandbox.ID, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	entries, err := fs.ReadDir(m.root.FS(), ".")
	if err != nil {
		return nil, fmt.Errorf("list fake networks: %w", err)
	}
	var ids []sandbox.ID
	for _, e := range entries {
		if id, err := sandbox.ParseID(e.Name()); err == nil {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

func (m *Manager) box(id sandbox.ID) *box { return &box{id: id, socketPath: m.socketPath(id)} }

func check(ctx context.Context, id sandbox.ID) error {
	if _, err := sandbox.ParseID(string(id)); err != nil {
		return err
	}
	return ctx.Err()
}

type box struct {
	id         sandbox.ID
	socketPath string
}

// Tap fails: a fake machine has no interface.
func (b *box) Tap(context.Context) (*os.File, error) {
	return nil, fmt.Errorf("the fake network of %s has no tap", b.id)
}

// AgentSocket connects to the agent's unix socket. An agent that does not listen is a guest_not_ready error.
func (b *box) AgentSocket(ctx context.Context) (sandboxnet.AgentSocket, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", b.socketPath)
	if err != nil {
		return sandboxnet.AgentSocket{}, &sandbox.Error{Code: sandbox.CodeGuestNotReady,
			Message: "the agent does not listen", Cause: err.Error(), Remedy: "try again shortly", Err: err}
	}
	defer conn.Close() // File is a duplicate
	f, err := conn.(*net.UnixConn).File()
	if err != nil {
		return sandboxnet.AgentSocket{}, fmt.Errorf("socket to the agent of %s: %w", b.id, err)
	}
	return sandboxnet.AgentSocket{File: f, Connected: true}, nil
}

// Close does nothing: a fake box holds no descriptor.
func (b *box) Close() error { return nil }
