//go:build realvm

package machine_test

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/internal/guestnet"
)

// TestGuestFromInside looks at one machine from inside: what programs find there, and that they cannot take the agent
// away. Its parts share the machine and run one after the other.
func TestGuestFromInside(t *testing.T) {
	t.Parallel()
	spec := guestSpec{memoryMiB: 256, imageMiB: 64, diskMiB: 1024, image: probeImage(t, map[string]string{
		"etc/hosts": "127.0.0.1 localhost\n127.0.1.1 builder\n"})}
	g := boot(t, spec)
	g.waitReady(t)
	for _, part := range []struct {
		name string
		run  func(*testing.T, *guest)
	}{
		{"disk has grown", checkDisk},
		{"mounts", checkMounts},
		{"identity", checkIdentity},
		{"clock", checkClock},
		{"network", checkNetwork},
		{"initramfs is gone", checkInitramfs},
		{"agent is out of reach", checkOutOfReach},
		{"token", checkToken},
		{"orphans", checkOrphans},
		{"signals", checkSignals},
		{"memory", checkMemory},
		{"processes", checkBomb},
	} {
		if !t.Run(part.name, func(t *testing.T) { part.run(t, g) }) {
			return // the machine may be of no use any more
		}
	}
}

func checkDisk(t *testing.T, g *guest) {
	size, err := strconv.ParseUint(g.report(t)["root bytes"], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	if size < 900<<20 || size > 1024<<20 {
		t.Errorf("the root has %d bytes, want nearly 1 GiB", size)
	}
}

func checkMounts(t *testing.T, g *guest) {
	files := g.report(t, "/proc/self/mounts", "/proc/self/cgroup", "/sys/fs/cgroup/user/pids.max",
		"/sys/fs/cgroup/user/memory.max", "/dev/fd", "/dev/stdin")
	for _, want := range []string{"/dev/vda / ext4 rw,", ",noinit_itable", "proc /proc ", "sysfs /sys ", "devtmpfs /dev ", "devpts /dev/pts ",
		"tmpfs /dev/shm ", "tmpfs /run ", "cgroup2 /sys/fs/cgroup "} {
		if !strings.Contains(files["/proc/self/mounts"], want) {
			t.Errorf("no mount %q in\n%s", want, files["/proc/self/mounts"])
		}
	}
	if got := files["/proc/self/cgroup"]; got != "0::/user\n" {
		t.Errorf("cgroup %q, want 0::/user", got)
	}
	if files["/dev/fd"] != "/proc/self/fd" || files["/dev/stdin"] != "/proc/self/fd/0" {
		t.Errorf("/dev/fd is %q, /dev/stdin is %q", files["/dev/fd"], files["/dev/stdin"])
	}
	for _, limit := range []string{"pids", "memory"} {
		value := strings.TrimSpace(files["/sys/fs/cgroup/user/"+limit+".max"])
		if n, err := strconv.ParseUint(value, 10, 64); err != nil || n == 0 {
			t.Errorf("%s.max is %q", limit, value)
		}
	}
}

func checkIdentity(t *testing.T, g *guest) {
	now := time.Date(2031, 5, 6, 7, 8, 9, 0, time.UTC)
	_, err := g.agent.Init(t.Context(), connect.NewRequest(&agentv1.InitRequest{Generation: 1, Hostname: "box-7",
		WallTime: timestamppb.New(now), Entropy: bytes.Repeat([]byte{7}, 64)}))
	if err != nil {
		t.Fatal(err)
	}
	files := g.report(t, "/proc/sys/kernel/hostname", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf")
	want := map[string]string{
		"/proc/sys/kernel/hostname": "box-7\n",
		"/etc/hostname":             "box-7\n",
		"/etc/hosts":                "127.0.0.1 localhost\n127.0.1.1\tbox-7\n",
		"/etc/resolv.conf":          "nameserver " + guestnet.HostAddr().String() + "\n",
	}
	for path, content := range want {
		if files[path] != content {
			t.Errorf("%s is %q, want %q", path, files[path], content)
		}
	}
	inside, err := time.Parse(time.RFC3339, files["time"])
	if err != nil || inside.Before(now) || inside.After(now.Add(time.Minute)) {
		t.Errorf("the guest's clock says %s, want about %s", files["time"], now)
	}
}

// checkClock: the clock is set again without a new generation, moved in a step when it is far off, and slowly, so that it
// does not go back, when it is off by little.
func checkClock(t *testing.T, g *guest) {
	adjust := func(by time.Duration) time.Time {
		t.Helper()
		res, err := g.agent.AdjustClock(t.Context(), connect.NewRequest(&agentv1.AdjustClockRequest{By: durationpb.New(by)}))
		if err != nil {
			t.Fatal(err)
		}
		return res.Msg.GetWallTime().AsTime()
	}
	now := time.Date(2033, 5, 6, 7, 8, 9, 0, time.UTC)
	_, err := g.agent.Init(t.Context(), connect.NewRequest(&agentv1.InitRequest{Generation: 1, Hostname: "other",
		WallTime: timestamppb.New(now), Entropy: bytes.Repeat([]byte{7}, 64)}))
	if err != nil {
		t.Fatal(err)
	}
	expect := func(got, want time.Time) {
		t.Helper()
		if got.Before(want) || got.After(want.Add(time.Minute)) {
			t.Errorf("the guest's clock says %s, want about %s", got, want)
		}
	}
	expect(adjust(0), now)
	expect(adjust(time.Hour), now.Add(time.Hour))
	expect(adjust(-2*time.Hour), now.Add(-time.Hour))
	for range 20 { // in steps this would be more than the time it takes
		before := adjust(0)
		if after := adjust(-190 * time.Millisecond); after.Before(before) {
			t.Errorf("the clock went back from %s to %s", before, after)
		}
	}
	if name := g.report(t, "/proc/sys/kernel/hostname")["/proc/sys/kernel/hostname"]; name != "box-7\n" {
		t.Errorf("host name %q", name)
	}
}

func checkNetwork(t *testing.T, g *guest) {
	files := g.report(t, "/proc/net/arp", "/proc/net/route", "/proc/net/if_inet6",
		"/sys/class/net/eth0/address", "/sys/class/net/eth0/operstate")
	if got := strings.TrimSpace(files["/sys/class/net/eth0/address"]); got != guestnet.GuestMAC {
		t.Errorf("hardware address %s, want %s", got, guestnet.GuestMAC)
	}
	// Flags 0x6: complete and permanent.
	if arp := strings.Join(strings.Fields(files["/proc/net/arp"]), " "); !strings.Contains(arp,
		guestnet.HostAddr().String()+" 0x1 0x6 "+guestnet.HostMAC) {
		t.Errorf("no static neighbour in %s", files["/proc/net/arp"])
	}
	// 169.254.0.22 in the byte order of the kernel's table.
	if routes := strings.Join(strings.Fields(files["/proc/net/route"]), " "); !strings.Contains(routes, "eth0 00000000 1600FEA9 0003") {
		t.Errorf("no default route in %s", files["/proc/net/route"])
	}
	if strings.Contains(files["/proc/net/if_inet6"], "eth0") {
		t.Errorf("the link has an IPv6 address: %s", files["/proc/net/if_inet6"])
	}
}

func checkInitramfs(t *testing.T, g *guest) {
	files := g.report(t, "/", "/proc/cmdline")
	for _, name := range []string{"init", "modules", "space-boot.json", "newroot"} {
		for found := range strings.FieldsSeq(files["/"]) {
			if found == name {
				t.Errorf("%s is in the root: %s", name, files["/"])
			}
		}
	}
	if strings.Contains(files["/proc/cmdline"], g.token) {
		t.Error("the token is on the kernel's command line")
	}
}

// checkOutOfReach tries the agent's port from inside, also from the host's address, which root can give to any
// interface. That the port is open at all is what every other part shows.
func checkOutOfReach(t *testing.T, g *guest) {
	agentAddr := guestnet.AgentAddr().String()
	output := g.run(t, "connect", agentAddr, fmt.Sprintf("127.0.0.1:%d", guestnet.AgentPort),
		"127.0.0.1>"+agentAddr, "as "+guestnet.HostAddr().String()+">"+agentAddr)
	tries := strings.Split(strings.TrimSpace(output), "\n")
	if len(tries) != 4 {
		t.Fatalf("%d answers:\n%s", len(tries), output)
	}
	for _, try := range tries {
		if !strings.Contains(try, "refused") && !strings.Contains(try, "timeout") {
			t.Errorf("not kept out: %s", try)
		}
	}
}

func checkToken(t *testing.T, g *guest) {
	stranger := g.client(strings.Repeat("wrong-", 6))
	_, err := stranger.Hello(t.Context(), connect.NewRequest(&agentv1.HelloRequest{}))
	if connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("with a wrong token: %v, want unauthenticated", err)
	}
}

func checkOrphans(t *testing.T, g *guest) {
	g.run(t, "orphan", "20")
	g.waitCollected(t)
	// Collecting orphans must not take the statuses of the agent's own children.
	var ids []string
	for code := range 20 {
		ids = append(ids, g.spawn(t, "exit", strconv.Itoa(code)))
	}
	for code, id := range ids {
		if _, ended := g.finish(t, id); ended.ExitCode != int32(code) {
			t.Errorf("exit code %d, want %d", ended.ExitCode, code)
		}
	}
}

func checkSignals(t *testing.T, g *guest) {
	g.run(t, "kill1")
	g.mustAnswer(t)
}

func checkMemory(t *testing.T, g *guest) {
	_, ended := g.finish(t, g.spawn(t, "eat"))
	if ended.Signal != "SIGKILL" {
		t.Errorf("a process that takes all memory ended with code %d, signal %q; want SIGKILL", ended.ExitCode, ended.Signal)
	}
	g.mustAnswer(t)
}

// checkBomb lets a program fork until it may no more: the agent still answers, and still ends it all.
func checkBomb(t *testing.T, g *guest) {
	id := g.spawn(t, "bomb")
	stream, err := g.agent.Attach(t.Context(), connect.NewRequest(&agentv1.AttachRequest{ProcessId: id, Follow: true,
		Positions: []*agentv1.StreamPosition{{Stream: agentv1.OutputStream_OUTPUT_STREAM_STDOUT}}}))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	for stream.Receive() {
		data := stream.Msg().GetData()
		if data == nil {
			continue
		}
		var forks int
		if _, err := fmt.Sscan(string(data.Data), &forks); err != nil || forks < 50 || !strings.Contains(string(data.Data), "unavailable") {
			t.Errorf("the bomb said %q, want a number of forks and why there are no more", data.Data)
		}
		g.mustAnswer(t)
		_, err := g.agent.SignalProcess(t.Context(), connect.NewRequest(&agentv1.SignalProcessRequest{ProcessId: id, Signal: "SIGKILL"}))
		if err != nil {
			t.Fatal(err)
		}
		break
	}
	if _, ended := g.finish(t, id); ended.Signal != "SIGKILL" {
		t.Errorf("it ended with code %d, signal %q: %s; want SIGKILL", ended.ExitCode, ended.Signal, ended.ErrorMessage)
	}
	g.waitCollected(t)
	g.run(t, "exit", "0")
}

// waitCollected waits until no dead process is left in the guest.
func (g *guest) waitCollected(t *testing.T) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for g.run(t, "zombies") != "0\n" {
		if time.Now().After(deadline) {
			t.Fatal("dead processes remain")
		}
	}
}

// mustAnswer asks the agent something.
func (g *guest) mustAnswer(t *testing.T) {
	t.Helper()
	if _, err := g.agent.Hello(t.Context(), connect.NewRequest(&agentv1.HelloRequest{})); err != nil {
		t.Fatalf("the agent does not answer: %v", err)
	}
}
