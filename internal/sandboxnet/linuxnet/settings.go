package linuxnet

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// setting is one kernel setting of a namespace: a path below /proc/sys/net and its value.
type setting struct{ path, value string }

// settings are written before the link exists, so it inherits those of conf/default. A new namespace starts with a
// copy of the host's values, and a host with containers on it forwards: each one is set, also where the kernel's own
// default would do.
func settings() []setting {
	list := []setting{
		{"ipv4/ip_forward", "0"}, // first: it resets others
		{"ipv4/icmp_echo_ignore_all", "1"},
		{"ipv4/conf/all/secure_redirects", "0"},
		// What a guest that floods, or does not read, may keep in the buffers of one connection: 1 MiB each way.
		{"ipv4/tcp_rmem", "4096 131072 1048576"},
		{"ipv4/tcp_wmem", "4096 65536 1048576"},
	}
	for _, scope := range []string{"all", "default"} {
		for _, s := range []setting{
			{"route_localnet", "0"},
			{"accept_redirects", "0"},
			{"send_redirects", "0"},
			{"accept_source_route", "0"},
			{"accept_local", "0"},
			{"proxy_arp", "0"},
			{"rp_filter", "1"},
			{"arp_ignore", "8"},   // answers no ARP request
			{"log_martians", "0"}, // a guest must not write into the host's log
		} {
			list = append(list, setting{"ipv4/conf/" + scope + "/" + s.path, s.value})
		}
		list = append(list, setting{"ipv6/conf/" + scope + "/disable_ipv6", "1"})
	}
	return list
}

// trackingSettings are there only once a rule has asked for connection tracking.
func trackingSettings() []setting {
	return []setting{
		{"netfilter/nf_conntrack_tcp_loose", "0"},             // no flow begins in its middle
		{"netfilter/nf_conntrack_tcp_timeout_syn_sent", "10"}, // seconds; tries while a guest boots are soon forgotten
	}
}

// applySettings writes settings of the calling thread's namespace. /proc/sys/net shows each thread its own
// namespace; what is opened is made sure to be a real procfs, else a write could land anywhere.
func applySettings(list []setting) error {
	proc, err := unix.Open("/proc", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /proc: %w", err)
	}
	defer unix.Close(proc)
	var st unix.Statfs_t
	if err := unix.Fstatfs(proc, &st); err != nil {
		return fmt.Errorf("statfs /proc: %w", err)
	}
	if st.Type != unix.PROC_SUPER_MAGIC {
		return errors.New("/proc is not a proc file system")
	}
	for _, s := range list {
		if err := writeSetting(proc, s); err != nil {
			return fmt.Errorf("kernel setting %s=%s: %w", s.path, s.value, err)
		}
	}
	return nil
}

func writeSetting(proc int, s setting) error {
	fd, err := unix.Openat2(proc, "sys/net/"+s.path, &unix.OpenHow{
		Flags:   unix.O_WRONLY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if errors.Is(err, unix.ENOENT) && s.path[:4] == "ipv6" {
		return nil // a kernel without IPv6
	}
	if err != nil {
		return os.NewSyscallError("openat2", err)
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte(s.value))
	return os.NewSyscallError("write", err)
}
