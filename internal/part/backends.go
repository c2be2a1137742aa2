package part

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/space-sandbox/space/internal/datadir"
	"github.com/space-sandbox/space/internal/guestos"
	"github.com/space-sandbox/space/internal/guestos/agentbin"
	"github.com/space-sandbox/space/internal/node"
	"github.com/space-sandbox/space/internal/node/ledger"
	"github.com/space-sandbox/space/internal/sandbox"
	netfake "github.com/space-sandbox/space/internal/sandboxnet/fake"
	"github.com/space-sandbox/space/internal/sandboxnet/linuxnet"
	"github.com/space-sandbox/space/internal/vmm"
	"github.com/space-sandbox/space/internal/vmm/fake"
	"github.com/space-sandbox/space/internal/vmm/qemu"
)

// backends are the drivers of a node with what their probes said.
type backends struct {
	all         []node.Backend
	probes      map[string]vmm.Probe
	defaultName string
	closers     []func() error
}

func (b *backends) close() error {
	var errs []error
	for _, c := range b.closers {
		errs = append(errs, c())
	}
	return errors.Join(errs...)
}

// openBackends opens the drivers that choice allows, ready to start machines. The fake is never part of auto.
func openBackends(ctx context.Context, dir *datadir.Dir, choice, bootID string, logger *slog.Logger) (_ *backends, err error) {
	b := &backends{probes: map[string]vmm.Probe{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	if err := CheckDriver(choice); err != nil {
		return nil, err
	}
	if choice == driverFake {
		err = b.addFake(ctx, dir, logger)
	} else {
		err = b.addQEMU(ctx, dir, bootID, logger)
	}
	if err != nil {
		return nil, err
	}
	return b, nil
}

// What --driver may say.
const (
	driverAuto = "auto"
	driverQEMU = "qemu"
	driverFake = "fake"
)

// CheckDriver refuses what is no choice of drivers.
func CheckDriver(choice string) error {
	switch choice {
	case driverAuto, driverQEMU, driverFake:
		return nil
	}
	return &sandbox.Error{Code: sandbox.CodeInvalidArgument, Message: fmt.Sprintf("driver %q is not known", choice), Remedy: "use auto, qemu or fake"}
}

func (b *backends) addQEMU(ctx context.Context, dir *datadir.Dir, bootID string, logger *slog.Logger) error {
	assets, err := openGuest(dir)
	if err != nil {
		return err
	}
	b.closers = append(b.closers, assets.Close)
	network, err := linuxnet.New(linuxnet.Config{InstallationID: dir.Installation.ID, Logger: logger})
	if err != nil {
		return err
	}
	path := filepath.Join(dir.NodeDir(), "probe-qemu.json")
	key := bootID + " " + assets.Manifest().Kernel.SHA256
	cfg := qemu.Config{Logger: logger, KernelArgs: guestos.KernelArgs(), ProbeUID: dir.Installation.UIDBase, ProbeGID: dir.Installation.UIDBase,
		Guest: func() (kernel, initrd *os.File, err error) {
			kernel, initrd, _, err = guest{assets}.Open(sandbox.NewID(), strings.Repeat("0", 64))
			return kernel, initrd, err
		}}
	saved, known := loadProbe(path, key)
	cfg.KVM = known && saved.Isolation == vmm.IsolationKVM
	driver := qemu.New(cfg)
	probe := saved
	if !known {
		probe = driver.Probe(ctx)
		if err := saveProbe(path, key, probe); err != nil {
			return err
		}
	}
	if !probe.Available {
		return &sandbox.Error{Code: sandbox.CodeDriverUnavailable, Message: "QEMU does not work on this host", Cause: probe.Reason, Remedy: "see space doctor"}
	}
	b.add(node.Backend{Driver: driver, Network: network, Guest: guest{assets}, Parts: qemuParts()}, probe)
	return nil
}

// openGuest opens what machines boot; setup makes it again when it is missing or damaged.
func openGuest(dir *datadir.Dir) (*guestos.Assets, error) {
	assets, err := guestos.Open(dir.GuestDir())
	if err != nil {
		return nil, &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "the guest's kernel or initramfs cannot be used",
			Cause: err.Error(), Remedy: "run: space setup --data-dir " + dir.Path, Err: err}
	}
	return assets, nil
}

// removalBackends are drivers that only find machines and end them: they work also when the guest's files are lost and
// no virtual machine can be started here any more.
func removalBackends(ctx context.Context, dir *datadir.Dir, choice string, logger *slog.Logger) (*backends, error) {
	b := &backends{probes: map[string]vmm.Probe{}}
	if choice == "fake" {
		if err := b.addFake(ctx, dir, logger); err != nil {
			return nil, errors.Join(err, b.close())
		}
		return b, nil
	}
	network, err := linuxnet.New(linuxnet.Config{InstallationID: dir.Installation.ID, Logger: logger})
	if err != nil {
		return nil, err
	}
	b.add(node.Backend{Driver: qemu.New(qemu.Config{Logger: logger}), Network: network, Parts: qemuParts()}, vmm.Probe{})
	return b, nil
}

func qemuParts() ledger.Parts { return ledger.Parts{Process: true, Sockets: []string{qemu.SocketName}} }

// addFake needs SPACE_ALLOW_FAKE=1: it runs commands on the host itself, without isolation.
func (b *backends) addFake(ctx context.Context, dir *datadir.Dir, logger *slog.Logger) error {
	agent, err := agentbin.Open()
	if err != nil {
		return err
	}
	network, err := netfake.New(netfake.Config{Dir: filepath.Join(dir.NodeDir(), "fakenet"),
		SocketPath: func(id sandbox.ID) string { return filepath.Join(dir.MachineRunDir(id), fake.AgentSocketName) }})
	if err != nil {
		return err
	}
	b.closers = append(b.closers, network.Close)
	driver, err := fake.New(fake.Config{AllowFake: os.Getenv("SPACE_ALLOW_FAKE") == "1", Agent: agent, Logger: logger})
	if err != nil {
		return err
	}
	b.add(node.Backend{Driver: driver, Network: network,
		Parts: ledger.Parts{Process: true, Family: true, Sockets: []string{fake.AgentSocketName}}}, driver.Probe(ctx))
	return nil
}

func (b *backends) add(backend node.Backend, probe vmm.Probe) {
	name := backend.Driver.Name()
	b.all = append(b.all, backend)
	b.probes[name] = probe
	if b.defaultName == "" {
		b.defaultName = name
	}
}

// savedProbe keeps the answer of a probe, which takes seconds, over restarts of node within one boot of the host.
type savedProbe struct {
	Key   string    `json:"key"`
	Probe vmm.Probe `json:"probe"`
}

// loadProbe returns the answer saved under key; one that found nothing is asked again.
func loadProbe(path, key string) (vmm.Probe, bool) {
	var saved savedProbe
	data, err := os.ReadFile(path)
	if err != nil || json.Unmarshal(data, &saved) != nil || saved.Key != key {
		return vmm.Probe{}, false
	}
	return saved.Probe, saved.Probe.Available
}

func saveProbe(path, key string, probe vmm.Probe) error {
	data, err := json.Marshal(savedProbe{Key: key, Probe: probe})
	if err != nil {
		return fmt.Errorf("save probe: %w", err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return fmt.Errorf("save probe: %w", err)
	}
	return nil
}
