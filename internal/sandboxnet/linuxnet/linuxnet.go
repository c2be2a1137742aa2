// Package linuxnet keeps the network boxes of sandboxes in Linux network namespaces.
//
// A box is the namespace /run/netns/space-<installation>-<sandbox>: a persistent tap with the addresses of package
// guestnet, a static neighbour, no other route than the /30 between the two, no other usable interface (loopback stays
// down), IPv6 off, and the rules of rules.go. Everything is made by netlink from a thread inside the namespace; the
// mount under /run/netns comes last, so that a box is either whole or, after a crash, gone with its thread.
//
// The process needs CAP_SYS_ADMIN and CAP_NET_ADMIN and the initial user namespace.
package linuxnet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"sync"

	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/sandboxnet"
	"github.com/space-sandbox/space/internal/sandboxnet/nsthread"
	"golang.org/x/sys/unix"
)

// mountDir is where tools of the host (ip netns, nsenter) look for named namespaces.
const mountDir = "/run/netns"

// installationPattern is the form of an installation id (package datadir).
var installationPattern = regexp.MustCompile(`^[a-z0-9]{1,12}$`)

// Config is what a Manager needs.
type Config struct {
	// InstallationID tells the boxes of installations on one host apart: 1 to 12 of [a-z0-9].
	InstallationID string
	Logger         *slog.Logger
}

// Manager makes, finds and removes boxes. Safe for concurrent use; calls about one sandbox wait for each other.
type Manager struct {
	prefix string
	log    *slog.Logger
	locks  keyedLocks
	// warnStray says only once that this host puts fallback tunnels into new namespaces.
	warnStray sync.Once
}

var _ sandboxnet.Manager = (*Manager)(nil)

// New checks that boxes can be made here. It makes nothing but the directory /run/netns.
func New(cfg Config) (*Manager, error) {
	if !installationPattern.MatchString(cfg.InstallationID) {
		return nil, fmt.Errorf("installation id %q is not 1 to 12 of [a-z0-9]", cfg.InstallationID)
	}
	if cfg.Logger == nil {
		return nil, errors.New("linuxnet: no logger")
	}
	if err := checkHost(); err != nil {
		return nil, err
	}
	return &Manager{prefix: "space-" + cfg.InstallationID + "-", log: cfg.Logger}, nil
}

// checkHost finds out what would make every Create fail.
func checkHost() error {
	if os.Geteuid() != 0 {
		return &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "sandbox networks need root",
			Cause: fmt.Sprintf("the effective uid is %d", os.Geteuid()), Remedy: "run space up as root"}
	}
	if err := unix.Access(tunDevice, unix.R_OK|unix.W_OK); err != nil {
		return &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "sandbox networks need " + tunDevice,
			Cause: err.Error(), Remedy: "load the module tun: modprobe tun", Err: err}
	}
	if err := os.MkdirAll(mountDir, 0o755); err != nil {
		return fmt.Errorf("directory for network namespaces: %w", err)
	}
	return nil
}

// Create makes the box of a sandbox; an existing one is removed first. On error nothing is left.
func (m *Manager) Create(ctx context.Context, id sandbox.ID) (sandboxnet.Box, error) {
	path, err := m.path(id)
	if err != nil {
		return nil, err
	}
	defer m.locks.lock(id)()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := removeBox(path); err != nil {
		return nil, fmt.Errorf("remove the old network of %s: %w", id, err)
	}
	var ns *os.File
	err = nsthread.Run(func() error {
		var err error
		ns, err = m.build(ctx, path)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("make the network of %s: %w", id, err)
	}
	return &box{id: id, ns: ns}, nil
}

// Open finds the box that an earlier process made.
func (m *Manager) Open(ctx context.Context, id sandbox.ID) (sandboxnet.Box, error) {
	path, err := m.path(id)
	if err != nil {
		return nil, err
	}
	defer m.locks.lock(id)()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ns, err := openNamespace(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNotNamespace) {
		return nil, &sandbox.Error{Code: sandbox.CodeNotFound, Message: "the sandbox has no network on this host",
			Cause: err.Error(), Remedy: "the sandbox cannot be reached any more; delete it", Err: err}
	}
	if err != nil {
		return nil, fmt.Errorf("open the network of %s: %w", id, err)
	}
	return &box{id: id, ns: ns}, nil
}

// Delete removes everything of a box, also of a half-made one; it succeeds when there is none. The link goes before
// the rules: they vanish with the namespace.
func (m *Manager) Delete(ctx context.Context, id sandbox.ID) error {
	path, err := m.path(id)
	if err != nil {
		return err
	}
	defer m.locks.lock(id)()
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := removeBox(path); err != nil {
		return fmt.Errorf("remove the network of %s: %w", id, err)
	}
	return nil
}

// List names the boxes of this installation that exist, half-made ones too, so that a cleaner finds them.
func (m *Manager) List(ctx context.Context) ([]sandbox.ID, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	names, err := m.names()
	if err != nil {
		return nil, err
	}
	var ids []sandbox.ID
	for _, name := range names {
		if id, err := sandbox.ParseID(strings.TrimPrefix(name, m.prefix)); err == nil {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// names returns the named namespaces that have this installation's prefix, whatever follows it.
func (m *Manager) names() ([]string, error) {
	entries, err := os.ReadDir(mountDir)
	if err != nil {
		return nil, fmt.Errorf("list network namespaces: %w", err)
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), m.prefix) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// path is where the namespace of a sandbox is mounted. The id is checked again: it becomes a path here.
func (m *Manager) path(id sandbox.ID) (string, error) {
	if _, err := sandbox.ParseID(string(id)); err != nil {
		return "", err
	}
	return mountDir + "/" + m.prefix + string(id), nil
}
