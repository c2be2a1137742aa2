package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/datadir"
	"github.com/space-sandbox/space/internal/guestos"
	"github.com/space-sandbox/space/internal/pool"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/vmm"
	"github.com/space-sandbox/space/internal/vmm/qemu"
)

// lowBytes of free space is worth a warning.
const lowBytes = 2 << 30

// fromError shows an error of the house as a failed check.
func fromError(err error) Check {
	se := sandbox.AsError(err)
	if se.Code == sandbox.CodeInternal {
		return Check{Status: Fail, Found: err.Error(), Cause: "it cannot be used", Fix: "run space setup again"}
	}
	return Check{Status: Fail, Found: se.Message, Cause: se.Cause, Fix: se.Remedy}
}

func (p *patient) checkDataDir(context.Context) Check {
	if err := datadir.CheckPath(p.DataDir); err != nil {
		return fromError(err)
	}
	info, err := os.Stat(p.DataDir)
	if errors.Is(err, fs.ErrNotExist) {
		return ok("%s does not exist yet, and can be made", p.DataDir)
	}
	if err != nil {
		return fromError(err)
	}
	if info.Mode().Perm()&0o001 == 0 {
		return Check{Status: Fail, Found: fmt.Sprintf("%s has mode %v", p.DataDir, info.Mode().Perm()), Cause: "the users space and space-gw cannot enter it",
			Fix: "chmod 0711 " + p.DataDir}
	}
	return ok("%s, mode %v", p.DataDir, info.Mode().Perm())
}

func (p *patient) checkInstallation(context.Context) Check {
	if p.dir == nil {
		return fromError(p.dirErr)
	}
	if !p.root {
		return ok("%s", p.dir.Installation.ID)
	}
	for _, f := range []struct {
		path string
		uid  uint32
		mode fs.FileMode
	}{{p.dir.AdminKeyFile(), 0, 0o600}, {p.dir.ControlDir(), p.dir.Installation.ControlUID, 0o700}, {p.dir.NodeDir(), 0, 0o700}} {
		var st unix.Stat_t
		if err := unix.Lstat(f.path, &st); err != nil {
			return Check{Status: Fail, Found: f.path + ": " + err.Error(), Cause: "a part of the installation is missing", Fix: "run space setup again"}
		}
		if st.Uid != f.uid || fs.FileMode(st.Mode&0o777) != f.mode {
			return Check{Status: Fail, Found: fmt.Sprintf("%s belongs to uid %d with mode %04o", f.path, st.Uid, st.Mode&0o777),
				Cause: fmt.Sprintf("it must belong to uid %d with mode %04o", f.uid, f.mode), Fix: "run space setup again"}
		}
	}
	return ok("%s", p.dir.Installation.ID)
}

func (p *patient) checkUsers(context.Context) Check {
	if p.dir == nil {
		return p.notSetUp()
	}
	in := p.dir.Installation
	for _, u := range []struct {
		name string
		uid  uint32
	}{{"space", in.ControlUID}, {"space-gw", in.GatewayUID}} {
		found, err := user.Lookup(u.name)
		if err != nil {
			return Check{Status: Fail, Found: err.Error(), Cause: "control and gateway run as these users", Fix: "run space setup again"}
		}
		if found.Uid != strconv.FormatUint(uint64(u.uid), 10) {
			return Check{Status: Fail, Found: fmt.Sprintf("%s has uid %s", u.name, found.Uid), Cause: fmt.Sprintf("the installation was made with uid %d", u.uid),
				Fix: "run space setup again"}
		}
	}
	return ok("space %d, space-gw %d", in.ControlUID, in.GatewayUID)
}

func (p *patient) checkUIDRange(context.Context) Check {
	if p.dir == nil {
		return p.notSetUp()
	}
	in := p.dir.Installation
	last := uint64(in.UIDBase) + uint64(in.UIDCount) - 1
	if in.UIDBase == 0 || in.UIDCount == 0 || last > 1<<32-2 {
		return Check{Status: Fail, Found: fmt.Sprintf("%d uids from %d", in.UIDCount, in.UIDBase), Cause: "machines need uids of their own", Fix: "run space setup again"}
	}
	if p.CheckClaim != nil {
		if err := p.CheckClaim(p.dir); err != nil {
			return fromError(err)
		}
	}
	return ok("%d to %d", in.UIDBase, last)
}

// checkLeftovers looks for what other installations have left behind. Those of this one are in its ledger.
func (p *patient) checkLeftovers(context.Context) Check {
	if p.Leftovers == nil {
		return ok("not looked at")
	}
	left, err := p.Leftovers()
	if err != nil {
		return fromError(err)
	}
	if len(left) == 0 {
		return ok("none")
	}
	c := Check{Status: Warn, Found: strings.Join(left, ", "), Cause: "the directory is gone, or its setup was not finished, and something of it is mounted or runs"}
	var fixes []string
	for _, dir := range left {
		fixes = append(fixes, "space down --all --data-dir "+dir)
	}
	c.Fix = strings.Join(fixes, "; ")
	return c
}

func (p *patient) checkPool(ctx context.Context) Check {
	if p.dir == nil {
		return p.notSetUp()
	}
	kind := p.dir.Installation.PoolKind
	if !p.root {
		c := needsRoot()
		c.Found = kind
		return c
	}
	pl, err := pool.OpenDir(p.dir)
	if err != nil {
		c := fromError(err)
		if reason := pool.LoopReason(ctx); kind == string(pool.KindLoopXFS) && reason != "" {
			c.Cause += " (" + reason + ")"
		} else if kind == string(pool.KindLoopXFS) && sandbox.CodeOf(err) == sandbox.CodeHostSetup && !errors.Is(err, fs.ErrNotExist) {
			c.Status = Warn // space up mounts it
		}
		return c
	}
	defer pl.Close()
	switch pl.Kind() {
	case pool.KindCopy:
		return Check{Status: Warn, Found: kind, Cause: "without reflinks each disk is a full copy: slow, and takes the full space",
			Fix: "set up a directory on XFS or btrfs, or on a host with loop devices and xfs"}
	case pool.KindReflink:
		if got, err := pool.Probe(p.dir.PoolDir()); err != nil || got != pool.KindReflink {
			return Check{Status: Warn, Found: "reflinks do not work", Cause: fmt.Sprint("cloning was tried: ", got, " ", err), Fix: "was the directory moved to another file system? set up again"}
		}
	}
	return ok("%s", kind)
}

func (p *patient) checkSpace(ctx context.Context) Check {
	if p.dir == nil || !p.root {
		free, err := pool.FreeBytes(existing(p.DataDir))
		if err != nil {
			return Check{Status: Warn, Found: "unknown", Cause: err.Error()}
		}
		return p.judgeSpace(free, ok("%d MiB free in %s", free>>20, p.DataDir))
	}
	pl, err := pool.OpenDir(p.dir)
	if err != nil {
		return Check{Status: Warn, Found: "unknown", Cause: "the pool is not there", Fix: "see the check of the pool"}
	}
	defer pl.Close()
	u, err := pl.Usage(ctx)
	if err != nil {
		return Check{Status: Warn, Found: "unknown", Cause: err.Error()}
	}
	return p.judgeSpace(u.FreeBytes, ok("%d of %d MiB free in the pool", u.FreeBytes>>20, u.TotalBytes>>20))
}

func (p *patient) judgeSpace(free uint64, c Check) Check {
	switch {
	case free < pool.MinImageBytes:
		c.Status, c.Cause, c.Fix = Fail, "no sandbox fits", "free some space"
	case free < lowBytes:
		c.Status, c.Cause, c.Fix = Warn, "only a few sandboxes fit", "free some space"
	}
	return c
}

// existing returns the nearest directory on the way to path that is there.
func existing(path string) string {
	for {
		if _, err := os.Stat(path); err == nil || path == "/" || path == "" {
			return path
		}
		path = path[:max(strings.LastIndexByte(path, '/'), 0)]
		if path == "" {
			path = "/"
		}
	}
}

func (p *patient) checkGuest(context.Context) Check {
	if p.dir == nil {
		return p.notSetUp()
	}
	if !p.root {
		return needsRoot()
	}
	assets, err := guestos.Open(p.dir.GuestDir())
	if err != nil {
		return Check{Status: Fail, Found: err.Error(), Cause: "sandboxes boot from these files", Fix: "run space setup again"}
	}
	defer assets.Close()
	m := assets.Manifest()
	return ok("kernel %s, agent %s, digests right", m.KernelVersion, m.AgentVersion)
}

func (p *patient) checkTemplates(context.Context) Check {
	if p.dir == nil {
		return p.notSetUp()
	}
	if !p.root {
		return needsRoot()
	}
	pl, err := pool.OpenDir(p.dir)
	if err != nil {
		return Check{Status: Warn, Found: "unknown", Cause: "the pool is not there", Fix: "see the check of the pool"}
	}
	defer pl.Close()
	list, err := pl.ListTemplates()
	if err != nil {
		return fromError(err)
	}
	var names []string
	for _, m := range list {
		names = append(names, m.Names...)
	}
	if len(names) == 0 {
		return Check{Status: Fail, Found: "none", Cause: "a sandbox is made from a template", Fix: "run space setup again"}
	}
	return ok("%s", strings.Join(names, ", "))
}

// checkKVM asks the driver that will run sandboxes: it boots a guest under KVM, with a deadline.
func (p *patient) checkKVM(ctx context.Context) Check {
	if !p.root {
		return needsRoot()
	}
	cfg := qemu.Config{KernelArgs: guestos.KernelArgs(), Logger: p.Logger}
	if p.dir != nil {
		assets, err := guestos.Open(p.dir.GuestDir())
		if err == nil {
			defer assets.Close()
			cfg.Guest = func() (kernel, initrd *os.File, err error) {
				if kernel, err = assets.OpenKernel(); err != nil {
					return nil, nil, err
				}
				if initrd, err = assets.OpenInitramfs(); err != nil {
					return nil, nil, errors.Join(err, kernel.Close())
				}
				return kernel, initrd, nil
			}
			// The last of the installation's uids: node gives machines the first ones.
			last := p.dir.Installation.UIDBase + p.dir.Installation.UIDCount - 1
			cfg.ProbeUID, cfg.ProbeGID = last, last
		}
	}
	probe := qemu.New(cfg).Probe(ctx)
	switch {
	case !probe.Available:
		return Check{Status: Fail, Found: "no QEMU", Cause: probe.Reason, Fix: "apt-get install qemu-system-x86 (space setup does it)"}
	case probe.Isolation != vmm.IsolationKVM:
		return Check{Status: Warn, Found: probe.Isolation, Cause: probe.Reason,
			Fix: "sandboxes run emulated, 10 to 30 times slower; use a host with working (nested) virtualization"}
	}
	return ok("a guest booted under KVM (QEMU %s)", probe.Version)
}

func (p *patient) checkPorts(ctx context.Context) Check {
	for _, addr := range p.Ports {
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
		if err == nil {
			err = listener.Close()
		}
		if err == nil {
			continue
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			return Check{Status: Fail, Found: addr + ": " + err.Error(), Cause: "space up cannot listen there", Fix: "choose another with --listen and --data-listen"}
		}
		if p.upRuns() {
			continue
		}
		return Check{Status: Warn, Found: addr + " is taken", Cause: "another program listens there", Fix: "end it, or choose another with --listen and --data-listen"}
	}
	if p.upRuns() {
		return ok("space up runs")
	}
	return ok("%s are free", strings.Join(p.Ports, " and "))
}

// upRuns reports whether space up holds its lock on this data directory.
func (p *patient) upRuns() bool {
	if p.dir == nil {
		return false
	}
	f, err := os.OpenFile(p.dir.LockFile(), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// Deadline is enough for all checks on a slow host.
const Deadline = time.Minute
