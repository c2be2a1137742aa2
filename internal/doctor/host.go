package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/confine"
)

const (
	minMajor, minMinor = 5, 14 // cgroup.kill
	goodMemoryBytes    = 2 << 30
	minMemoryBytes     = 512 << 20
)

// earliest is before this program was written: a clock that shows less is wrong.
func earliest() time.Time { return time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC) }

func (p *patient) checkRoot(context.Context) Check {
	if p.root {
		return ok("root")
	}
	return Check{Status: Warn, Found: fmt.Sprintf("uid %d", os.Geteuid()), Cause: "space setup and space up need root", Fix: "run them with sudo"}
}

func (p *patient) checkKernel(context.Context) Check {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return Check{Status: Fail, Found: err.Error()}
	}
	release := unix.ByteSliceToString(uts.Release[:])
	if !kernelAtLeast(release, minMajor, minMinor) {
		return Check{Status: Fail, Found: release, Cause: fmt.Sprintf("Linux %d.%d is the oldest that has all that is needed", minMajor, minMinor),
			Fix: "use a newer kernel (Debian 12 has 6.1)"}
	}
	return ok("%s", release)
}

// kernelAtLeast compares the first two numbers of a release such as 6.1.0-41-amd64.
func kernelAtLeast(release string, major, minor int) bool {
	var a, b int
	if n, err := fmt.Sscanf(release, "%d.%d", &a, &b); n != 2 || err != nil {
		return false
	}
	return a > major || (a == major && b >= minor)
}

func (p *patient) checkMemory(context.Context) Check {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return Check{Status: Warn, Found: "unknown", Cause: err.Error()}
	}
	total, available := meminfo(string(data), "MemTotal"), meminfo(string(data), "MemAvailable")
	c := ok("%d of %d MiB available", available>>20, total>>20)
	switch {
	case available < minMemoryBytes:
		c.Status, c.Cause, c.Fix = Fail, "not even one sandbox of 512 MiB fits", "end other programs or add memory"
	case available < goodMemoryBytes:
		c.Status, c.Cause, c.Fix = Warn, "only a few sandboxes fit", "end other programs or add memory"
	}
	return c
}

// meminfo returns a value of /proc/meminfo in bytes, 0 when it is not there.
func meminfo(text, key string) uint64 {
	for line := range strings.Lines(text) {
		var kib uint64
		if rest, found := strings.CutPrefix(line, key+":"); found {
			if _, err := fmt.Sscanf(rest, "%d kB", &kib); err == nil {
				return kib << 10
			}
		}
	}
	return 0
}

func (p *patient) checkClock(context.Context) Check {
	now := time.Now().UTC()
	if now.Before(earliest()) {
		return Check{Status: Fail, Found: now.Format(time.RFC3339), Cause: "that is in the past: signatures of packages and tokens fail",
			Fix: "set the clock, for example with timedatectl set-ntp true"}
	}
	return ok("%s", now.Format(time.RFC3339))
}

func (p *patient) checkPackages(context.Context) Check {
	if missing := MissingPackages(RuntimePackages()); len(missing) > 0 {
		list := strings.Join(missing, " ")
		return Check{Status: Fail, Found: "missing: " + list, Cause: "they run sandboxes", Fix: "apt-get install " + list + " (space setup does it)"}
	}
	if missing := MissingPackages(BuildPackages()); len(missing) > 0 {
		list := strings.Join(missing, " ")
		return Check{Status: Warn, Found: "missing: " + list, Cause: "they build templates", Fix: "apt-get install " + list + ", or use space setup --assets"}
	}
	return ok("all there")
}

func (p *patient) checkTun(context.Context) Check {
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if errors.Is(err, os.ErrPermission) && !p.root {
		return needsRoot()
	}
	if err != nil {
		return Check{Status: Fail, Found: err.Error(), Cause: "sandboxes get their network through a tap device", Fix: "modprobe tun"}
	}
	if err := f.Close(); err != nil {
		return Check{Status: Fail, Found: err.Error(), Cause: "/dev/net/tun cannot be used", Fix: "modprobe tun"}
	}
	return ok("/dev/net/tun opens")
}

// inNewNetwork runs f with a descriptor of a network namespace that nothing else is in.
func inNewNetwork(f func(ns int) error) error {
	done := make(chan error)
	go func() {
		// The thread is not unlocked: it ends with the goroutine, and the namespace with it.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("new network namespace: %w", err)
			return
		}
		ns, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			done <- err
			return
		}
		defer ns.Close()
		done <- f(int(ns.Fd()))
	}()
	return <-done
}

func (p *patient) checkNamespaces(context.Context) Check {
	if !p.root {
		return needsRoot()
	}
	if err := inNewNetwork(func(int) error { return nil }); err != nil {
		return Check{Status: Fail, Found: err.Error(), Cause: "each sandbox has a network namespace of its own",
			Fix: "use a kernel with network namespaces; in a container: run it privileged"}
	}
	return ok("network namespaces can be made")
}

func (p *patient) checkNftables(context.Context) Check {
	if !p.root {
		return needsRoot()
	}
	err := inNewNetwork(func(ns int) error {
		conn, err := nftables.New(nftables.WithNetNSFd(ns))
		if err != nil {
			return err
		}
		table := conn.AddTable(&nftables.Table{Name: "space-doctor", Family: nftables.TableFamilyINet})
		conn.AddChain(&nftables.Chain{Name: "input", Table: table, Type: nftables.ChainTypeFilter,
			Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter})
		return conn.Flush()
	})
	if err != nil {
		return Check{Status: Fail, Found: err.Error(), Cause: "the rules that hold a sandbox's network in are nftables",
			Fix: "modprobe nf_tables; use a kernel with CONFIG_NF_TABLES and CONFIG_NF_TABLES_INET"}
	}
	return ok("rules can be made")
}

func (p *patient) checkCgroups(context.Context) Check {
	version := "v1"
	var st unix.Statfs_t
	if err := unix.Statfs("/sys/fs/cgroup", &st); err == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
		version = "v2"
	}
	if !p.root {
		c := needsRoot()
		c.Found = version
		return c
	}
	groups, err := confine.OpenGroups("doctor")
	if err != nil {
		return Check{Status: Fail, Found: err.Error(), Cause: "without control groups nothing limits a sandbox", Fix: "mount cgroups (systemd does it)"}
	}
	if missing := groups.Missing(); len(missing) > 0 {
		return Check{Status: Warn, Found: version + " without " + strings.Join(missing, ", "), Cause: "these limits of sandboxes do not hold",
			Fix: "enable the controllers at boot, for example with cgroup_enable=memory"}
	}
	return ok("%s with memory, cpu and pids", version)
}

func (p *patient) checkLandlock(context.Context) Check {
	abi := confine.LandlockABI()
	if abi < 1 {
		return Check{Status: Warn, Found: "not in this kernel", Cause: "one wall less around programs that read untrusted data",
			Fix: "boot with lsm=landlock,… in the kernel's arguments"}
	}
	return ok("ABI %d", abi)
}
