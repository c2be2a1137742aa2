package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/vmm"
)

const kvmDevice = "/dev/kvm"

// kvmDeadline bounds the proof that KVM works: a guest with it starts in a fraction of that.
const kvmDeadline = 10 * time.Second

const probeMemoryMiB = sandbox.MinMemoryMiB

// userSpace are lines that a guest's console shows only after its kernel has run a program: the probe's machine has no
// disk, so its init gives up, and the kernel says so.
func userSpace() []string { return []string{"Attempted to kill init", "space-agent"} }

// Probe finds out whether QEMU runs here, and how: a /dev/kvm that opens proves nothing, so a guest is booted under
// it, with a deadline, until a program of the guest has run.
func (d *Driver) Probe(ctx context.Context) vmm.Probe {
	version, err := d.version(ctx)
	if err != nil {
		return vmm.Probe{Reason: fmt.Sprintf("QEMU does not run: %v; install qemu-system-x86", err)}
	}
	p := vmm.Probe{Available: true, Version: version, Isolation: vmm.IsolationKVM}
	if err := d.probeKVM(ctx); err != nil {
		p.Isolation, p.Reason = vmm.IsolationEmulated, err.Error()
	}
	d.kvm.Store(p.Isolation == vmm.IsolationKVM)
	return p
}

func (d *Driver) version(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, kvmDeadline)
	defer cancel()
	out, err := exec.CommandContext(ctx, d.cfg.Path, "--version").Output()
	if err != nil {
		return "", err
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimPrefix(line, "QEMU emulator version "), nil
}

func (d *Driver) probeKVM(ctx context.Context) (err error) {
	f, err := os.OpenFile(kvmDevice, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return errors.New("no /dev/kvm: the processor's virtualization is off or not passed on to this machine")
	}
	if err != nil {
		return fmt.Errorf("KVM cannot be used: %w", err)
	}
	f.Close()
	if d.cfg.Guest == nil || d.cfg.ProbeUID == 0 || d.cfg.ProbeGID == 0 {
		return errors.New("KVM is not used: there is no guest to try it with yet")
	}
	ctx, cancel := context.WithTimeout(ctx, kvmDeadline)
	defer cancel()
	seen, err := d.proveAlive(ctx, true)
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("KVM does not work here: a guest did not come to life in %s%s", kvmDeadline, lastLine(seen))
	}
	if err != nil {
		return fmt.Errorf("KVM does not work here: %w%s", err, lastLine(seen))
	}
	return nil
}

// proveAlive boots a guest and returns nil when a program of it has run, and what the console showed.
func (d *Driver) proveAlive(ctx context.Context, kvm bool) (seen string, err error) {
	spec, cleanup, err := d.probeSpec()
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, cleanup()) }()
	m, err := d.boot(ctx, spec, kvm)
	if err != nil {
		return "", err
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTime)
		defer cancel()
		err = errors.Join(err, m.Kill(end), m.Close())
	}()
	return m.awaitUserSpace(ctx)
}

func (m *Machine) awaitUserSpace(ctx context.Context) (string, error) {
	for {
		exit, ended := m.end.Exit()
		// A guest that gives up ends QEMU too, maybe while we ask; what it said last is kept.
		text, err := m.Console(ctx)
		if err != nil {
			text = m.keptConsole()
		}
		for _, line := range userSpace() {
			if strings.Contains(text, line) {
				return text, nil
			}
		}
		if ended {
			return text, fmt.Errorf("the guest ended: %s", exit.Reason)
		}
		select {
		case <-ctx.Done():
			return text, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// probeSpec is the smallest machine: no disk, no network.
func (d *Driver) probeSpec() (spec vmm.Spec, cleanup func() error, err error) {
	var closers []func() error
	cleanup = func() error {
		var errs []error
		for i := len(closers) - 1; i >= 0; i-- {
			errs = append(errs, closers[i]())
		}
		return errors.Join(errs...)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, cleanup())
		}
	}()
	dir, err := os.MkdirTemp("", "space-probe-")
	if err != nil {
		return spec, nil, err
	}
	closers = append(closers, func() error { return os.RemoveAll(dir) })
	kernel, initrd, err := d.cfg.Guest()
	if err != nil {
		return spec, nil, err
	}
	closers = append(closers, kernel.Close, initrd.Close)
	fd, err := unix.MemfdCreate("probe", unix.MFD_CLOEXEC)
	if err != nil {
		return spec, nil, fmt.Errorf("memory file: %w", err)
	}
	ram := os.NewFile(uintptr(fd), "probe")
	closers = append(closers, ram.Close)
	if err := ram.Truncate(probeMemoryMiB << 20); err != nil {
		return spec, nil, err
	}
	return vmm.Spec{ID: sandbox.NewID(), VCPUs: 1, MemoryMiB: probeMemoryMiB, Kernel: kernel, Initrd: initrd, RAM: ram,
		KernelArgs: d.cfg.KernelArgs + " loglevel=7", RunDir: dir, UID: d.cfg.ProbeUID, GID: d.cfg.ProbeGID}, cleanup, nil
}

func lastLine(console string) string {
	lines := strings.Split(strings.TrimSpace(console), "\n")
	last := lines[len(lines)-1]
	if last == "" {
		return "; its console stayed empty"
	}
	return fmt.Sprintf("; the last line of its console: %.200q", last)
}
