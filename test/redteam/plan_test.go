package redteam_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/space-sandbox/space/internal/guestnet"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/test/redteam/finding"
)

// newPlan aims at the documentation ranges, the metadata services of the clouds, and every address and port of this
// host. extra are ports of canaries.
func newPlan(t *testing.T, extra ...uint16) finding.Plan {
	t.Helper()
	hosts, hosts6 := hostAddresses(t)
	open := listeningPorts(t, extra)
	return finding.Plan{
		Nonce: string(sandbox.NewID()), Interface: "eth0", GuestMAC: guestnet.GuestMAC, HostMAC: guestnet.HostMAC,
		GuestAddr: guestnet.GuestAddr(), HostAddr: guestnet.HostAddr(), AgentPort: guestnet.AgentPort,
		Internet: addrs("192.0.2.1", "198.51.100.1", "203.0.113.1"),
		Metadata: addrs("169.254.169.254", "100.100.100.200", "168.63.129.16"),
		// The last two are metadata services of clouds.
		Internet6: addrs("2001:db8::1", "fd00:ec2::254", "64:ff9b::a9fe:a9fe"),
		Hosts:     hosts, Hosts6: hosts6, Open: open, Closed: closedPorts(t, open, 20),
	}
}

func addrs(text ...string) []netip.Addr {
	var list []netip.Addr
	for _, s := range text {
		list = append(list, netip.MustParseAddr(s))
	}
	return list
}

// hostAddresses are all of this host's but loopback and link-local ones, which mean the guest itself inside a guest;
// it gets at 127.0.0.1 by frames of its own making.
func hostAddresses(t *testing.T) (v4, v6 []netip.Addr) {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		p, err := netip.ParsePrefix(a.String())
		if err != nil || p.Addr().IsLoopback() || p.Addr().IsLinkLocalUnicast() {
			continue
		}
		if p.Addr().Is4() {
			v4 = append(v4, p.Addr())
		} else {
			v6 = append(v6, p.Addr())
		}
	}
	if len(v4) == 0 {
		t.Fatal("this host has no address besides loopback: there is nothing to attack")
	}
	return v4, v6
}

// listeningPorts reads what listens on this host, by TCP and UDP.
func listeningPorts(t *testing.T, extra []uint16) []uint16 {
	t.Helper()
	ports := slices.Clone(extra)
	for name, state := range map[string]string{"tcp": "0A", "tcp6": "0A", "udp": "07", "udp6": "07"} {
		f, err := os.Open("/proc/net/" + name)
		if errors.Is(err, os.ErrNotExist) {
			continue // a kernel without IPv6
		}
		if err != nil {
			t.Fatal(err)
		}
		for lines := bufio.NewScanner(f); lines.Scan(); {
			fields := strings.Fields(lines.Text())
			if len(fields) < 4 || fields[3] != state {
				continue
			}
			_, hex, _ := strings.Cut(fields[1], ":")
			if n, err := strconv.ParseUint(hex, 16, 16); err == nil && n > 0 {
				ports = append(ports, uint16(n))
			}
		}
		f.Close()
	}
	// The canaries stay in front: some attempts use only the first.
	seen := map[uint16]bool{}
	return slices.DeleteFunc(ports, func(p uint16) bool {
		known := seen[p]
		seen[p] = true
		return known
	})
}

// closedPorts are n on which nothing listens.
func closedPorts(t *testing.T, open []uint16, n int) []uint16 {
	t.Helper()
	var closed []uint16
	for port := uint16(20); len(closed) < n; port += 97 {
		if !slices.Contains(open, port) && port != guestnet.AgentPort && port != 53 {
			closed = append(closed, port)
		}
	}
	return closed
}

// buildProbe compiles the probe without C, as it must run in any guest.
func buildProbe(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "probe")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", path, "./probe")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the probe: %v\n%s", err, out)
	}
	return path
}

func writePlan(t *testing.T, plan finding.Plan) string {
	t.Helper()
	data, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "plan.json")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// parseFindings reads a probe's report.
func parseFindings(t *testing.T, report string) []finding.Finding {
	t.Helper()
	var list []finding.Finding
	for line := range strings.Lines(report) {
		var f finding.Finding
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			t.Fatalf("line of the probe's report: %v: %q", err, line)
		}
		list = append(list, f)
	}
	return list
}
