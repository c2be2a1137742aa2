// Package fakeagent is the agent of a fake machine: the real one, over a Machine that can do nothing to the host.
package fakeagent

import (
	"log/slog"
	"path/filepath"
	"time"

	"github.com/space-sandbox/space/internal/agent"
)

// Config is what an agent of a fake machine is made of. All but Version and Only are required.
type Config struct {
	Token     string
	Version   string
	Root      string // the machine's directory, made by the driver
	MemoryMiB int    // bounds the spools, as a real guest's memory does
	// Only is the user that everything acts as; nil is the one this process runs as.
	Only *agent.Only
	// PowerOff ends the machine.
	PowerOff func()
	Logger   *slog.Logger
}

// Etc is where the user database lies in a machine's directory.
func Etc(root string) string { return filepath.Join(root, "etc") }

// Home is the home directory of the one user.
func Home(root string) string { return filepath.Join(root, "home") }

// PoweredOff is a file in the machine's directory: the guest ended itself. Whoever adopted the process cannot know its
// exit status.
func PoweredOff(root string) string { return filepath.Join(root, "powered-off") }

// New makes the agent. End it with its Close.
func New(cfg Config) (*agent.Server, error) {
	m := &machine{powerOff: cfg.PowerOff}
	return agent.New(agent.Config{
		Token: cfg.Token, Version: cfg.Version, Machine: m, Etc: Etc(cfg.Root), Only: cfg.Only, Logger: cfg.Logger,
		Limits: agent.Limits{SpoolTotal: int64(cfg.MemoryMiB) << 20 / 8},
	})
}

// machine succeeds at what it does not do, so that everything above goes on as with a real guest.
type machine struct{ powerOff func() }

func (*machine) SetHostname(string) error        { return nil }
func (*machine) Now() time.Time                  { return time.Now() }
func (*machine) SetClock(time.Time) error        { return nil }
func (*machine) AdjustClock(time.Duration) error { return nil }
func (*machine) AddEntropy([]byte) error         { return nil }
func (*machine) UserGroup() int                  { return -1 }
func (m *machine) Shutdown()                     { m.powerOff() }
