package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/confine"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/vmm"
)

// DefaultPath is where distributions install QEMU.
const DefaultPath = "/usr/bin/qemu-system-x86_64"

// driverName is what requests and records say.
const driverName = "qemu"

// translationMiB bounds the cache of translated code of an emulated machine: a boot needs less than 32, compilers and
// interpreters more. It is memory that counts against the machine's group (see vmm.Limits), as far as it is used.
const translationMiB = 128

// oomScore makes the host's kernel, when it has no memory left, end machines before it ends node or anything else.
const oomScore = 500

// killTime bounds the end of a process that did not become a machine.
const killTime = 10 * time.Second

// Config is what a Driver is made of. Logger is required.
type Config struct {
	Path string // of qemu-system-x86_64; "" is DefaultPath
	// KVM says that an earlier Probe saw KVM working on this boot of the host. Probe sets it too.
	KVM bool
	// Guest opens the kernel and initramfs that Probe boots. Without it Probe says emulated. Probe closes them.
	Guest func() (kernel, initrd *os.File, err error)
	// KernelArgs is the common part of the kernel's command line, for Probe.
	KernelArgs string
	// ProbeUID and ProbeGID are what Probe's machine runs as; not 0.
	ProbeUID, ProbeGID uint32
	Logger             *slog.Logger
}

// Driver is the vmm.Driver of QEMU.
type Driver struct {
	cfg Config
	kvm atomic.Bool
	tsc *tscClock
}

var _ vmm.Driver = (*Driver)(nil)

// New makes a driver; it does not look at the host yet.
func New(cfg Config) *Driver {
	if cfg.Path == "" {
		cfg.Path = DefaultPath
	}
	d := &Driver{cfg: cfg, tsc: newTSCClock()}
	d.kvm.Store(cfg.KVM)
	return d
}

// Name is "qemu".
func (d *Driver) Name() string { return driverName }

// private is the driver's part of a State.
type private struct {
	Socket string `json:"socket"`
	KVM    bool   `json:"kvm"`
}

// Boot starts a machine. It makes the machine's group the group of spec.RAM and spec.Initrd, which QEMU opens by path.
func (d *Driver) Boot(ctx context.Context, spec vmm.Spec) (vmm.Machine, error) {
	if err := check(spec); err != nil {
		return nil, bootError(err, "")
	}
	if spec.Disk == nil || spec.Tap == nil {
		return nil, bootError(errors.New("a machine needs a disk and a tap"), "")
	}
	m, err := d.boot(ctx, spec, d.kvm.Load())
	if err != nil {
		return nil, err
	}
	return m, nil
}

func check(spec vmm.Spec) error {
	switch {
	case spec.Kernel == nil, spec.Initrd == nil, spec.RAM == nil:
		return errors.New("a machine needs a kernel, an initrd and memory")
	case spec.VCPUs < sandbox.MinVCPUs || spec.VCPUs > sandbox.MaxVCPUs:
		return fmt.Errorf("%d vCPUs", spec.VCPUs)
	case spec.MemoryMiB < sandbox.MinMemoryMiB || spec.MemoryMiB > sandbox.MaxMemoryMiB:
		return fmt.Errorf("%d MiB of memory", spec.MemoryMiB)
	case spec.UID == 0 || spec.GID == 0:
		return errors.New("a machine must not run as root")
	case !filepath.IsAbs(spec.RunDir):
		return fmt.Errorf("the run directory %q is not absolute", spec.RunDir)
	}
	return nil
}

func (d *Driver) boot(ctx context.Context, spec vmm.Spec, kvm bool) (*Machine, error) {
	if err := ctx.Err(); err != nil {
		return nil, bootError(err, "")
	}
	l, err := prepare(spec)
	if err != nil {
		return nil, bootError(err, "")
	}
	defer l.close()
	proc, err := confine.Start(d.process(spec, l, kvm))
	if err != nil {
		return nil, bootError(errors.Join(err, os.Remove(l.socket)), "")
	}
	l.closeFiles() // or a connection would wait for us to answer after QEMU has ended
	m := newMachine(proc, private{Socket: l.socket, KVM: kvm}, d.cfg.Logger.With("sandbox", spec.ID))
	if err := m.awaitRunning(ctx); err != nil {
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTime)
		defer cancel()
		killed := m.Kill(cleanup)
		return nil, bootError(errors.Join(err, killed, m.Close()), messages(l.stderr))
	}
	if m.stderr, err = dup(l.stderr); err != nil {
		d.cfg.Logger.Warn("the messages of QEMU will not be known", "error", err)
	}
	m.wanted = wantRunning
	m.supervise()
	return m, nil
}

// process is the confinement: what QEMU may open by path is its own program with its libraries and firmware.
func (d *Driver) process(spec vmm.Spec, l *launch, kvm bool) confine.Spec {
	devices := []string{}
	if kvm {
		devices = append(devices, kvmDevice)
	}
	prefix := filepath.Dir(filepath.Dir(d.cfg.Path))
	return confine.Spec{
		Path: d.cfg.Path, Args: buildArgs(spec, l.fds, kvm, l.direct, d.tsc.kHz()), Dir: "/",
		Files: l.files, Stdout: l.stderr, Stderr: l.stderr,
		UID: spec.UID, GID: spec.GID, Group: spec.Group,
		Namespaces: confine.Namespaces{Net: true, IPC: true, Mount: true, Devices: devices, Bare: true},
		Landlock: &confine.Landlock{ReadOnly: []string{
			d.cfg.Path, filepath.Join(prefix, "lib"), filepath.Join(prefix, "lib64"), filepath.Join(prefix, "share", "qemu"),
			"/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/qemu", "/usr/share/seabios", "/etc/ld.so.cache",
		}},
		OOMScore: oomScore,
		Rlimits: []confine.Rlimit{
			{Resource: unix.RLIMIT_CORE, Value: 0}, // it would hold the guest's memory
			{Resource: unix.RLIMIT_NOFILE, Value: 1024},
			{Resource: unix.RLIMIT_FSIZE, Value: l.fsize},
		},
	}
}

// Adopt finds a machine again. It does not wait for QEMU to answer: the process is the machine.
func (d *Driver) Adopt(_ context.Context, state vmm.State) (vmm.Machine, error) {
	var p private
	if err := json.Unmarshal(state.Private, &p); err != nil || state.Driver != driverName || !filepath.IsAbs(p.Socket) {
		return nil, fmt.Errorf("qemu: not a state of this driver: %w", errors.Join(err, vmm.ErrGone))
	}
	proc, err := confine.Adopt(state.Process)
	if errors.Is(err, confine.ErrGone) || errors.Is(err, confine.ErrNotOurs) {
		return nil, fmt.Errorf("qemu: %w: %w", vmm.ErrGone, err)
	}
	if err != nil {
		return nil, fmt.Errorf("qemu: %w", err)
	}
	m := newMachine(proc, p, d.cfg.Logger.With("pid", state.Process.PID))
	m.supervise()
	return m, nil
}

// bootError is the form in which a failed Boot reaches people.
func bootError(err error, messages string) error {
	e := &sandbox.Error{Code: sandbox.CodeVMMFailed, Message: "the virtual machine could not be started",
		Cause: err.Error(), Remedy: "space doctor checks what QEMU needs on this host", Err: err}
	if messages != "" {
		e.Cause += "; QEMU said: " + messages
	}
	switch {
	case errors.Is(err, context.Canceled):
		e.Code, e.Remedy = sandbox.CodeCanceled, ""
	case errors.Is(err, context.DeadlineExceeded):
		e.Code = sandbox.CodeDeadline
	}
	return e
}
