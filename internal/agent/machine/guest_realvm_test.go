//go:build realvm

package machine_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/api/proto/agent/v1/agentv1connect"
	"github.com/space-sandbox/space/internal/guestnet"
	"github.com/space-sandbox/space/internal/guestos"
	"github.com/space-sandbox/space/internal/guestos/bootconf"
	"github.com/space-sandbox/space/internal/rpc"
	"github.com/space-sandbox/space/internal/sandboxnet/netlab"
	"github.com/space-sandbox/space/internal/sandboxnet/nsthread"
)

// guestDirVariable names the directory with what guestos.Build made (space assets build).
const guestDirVariable = "SPACE_TEST_GUEST"

// bootDeadline is ten times what an emulated boot takes on an idle machine.
const bootDeadline = 60 * time.Second

// guestSpec is the machine a test asks for.
type guestSpec struct {
	memoryMiB int
	image     string // directory that becomes the root
	imageMiB  int
	diskMiB   int
}

// guest is a machine run by a bare QEMU: nothing of the product but the guest itself is under test here.
type guest struct {
	token   string
	network *netlab.Namespace
	agent   agentv1connect.AgentServiceClient
	console string
	disk    string
	ended   chan error // one value for each start

	processes atomic.Int64 // started so far
}

func testToken() string { return strings.Repeat("t0k3n-", 6) }

// boot starts a machine and returns at once.
func boot(t *testing.T, spec guestSpec) *guest {
	t.Helper()
	g := prepare(t, spec)
	g.start(t, spec)
	return g
}

// prepare makes all but the machine itself.
func prepare(t *testing.T, spec guestSpec) *guest {
	t.Helper()
	dir := t.TempDir()
	g := &guest{token: testToken(), network: netlab.New(t), console: filepath.Join(dir, "console"),
		disk: filepath.Join(dir, "disk"), ended: make(chan error, 1)}
	makeDisk(t, g.disk, spec)
	return g
}

// start runs QEMU on the guest's disk; also once more after it has ended.
func (g *guest) start(t *testing.T, spec guestSpec) {
	t.Helper()
	g.agent = g.client(g.token)
	assets, err := guestos.Open(os.Getenv(guestDirVariable))
	if err != nil {
		t.Fatalf("%s must name the guest's files: %v", guestDirVariable, err)
	}
	defer assets.Close()
	kernel, err := assets.OpenKernel()
	if err != nil {
		t.Fatal(err)
	}
	defer kernel.Close()
	initrd, err := assets.MachineInitrd(bootconf.Config{Token: g.token, SandboxID: "sbx_test", Hostname: "first"})
	if err != nil {
		t.Fatal(err)
	}
	defer initrd.Close()
	tap := g.network.Tap(t, netlab.Link{Name: "tap0", MAC: guestnet.HostMAC,
		Addrs:      []netip.Prefix{netip.PrefixFrom(guestnet.HostAddr(), guestnet.PrefixLen)},
		Neighbours: map[netip.Addr]string{guestnet.GuestAddr(): guestnet.GuestMAC}})
	ctx, cancel := beforeDeadline(t)
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", qemuArgs(spec, g)...)
	cmd.ExtraFiles = []*os.File{kernel, initrd, tap}
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	if err := cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		err := cmd.Wait()
		if err != nil {
			err = fmt.Errorf("qemu: %w: %s", err, complaint.String())
		}
		g.ended <- err
		tap.Close()
		close(exited)
	}()
	t.Cleanup(func() {
		cancel()
		<-exited
		if t.Failed() {
			text, _ := os.ReadFile(g.console)
			t.Logf("console:\n%s", text)
		}
	})
}

// beforeDeadline ends early enough for cleanups: go test's own deadline would leave the machine running.
func beforeDeadline(t *testing.T) (context.Context, context.CancelFunc) {
	t.Helper()
	if deadline, ok := t.Deadline(); ok {
		return context.WithDeadline(context.Background(), deadline.Add(-5*time.Second))
	}
	return context.WithCancel(context.Background())
}

func qemuArgs(spec guestSpec, g *guest) []string {
	return []string{
		"-M", "microvm,pit=on,pic=on,rtc=on", "-accel", "tcg", "-cpu", "max",
		"-m", fmt.Sprint(spec.memoryMiB), "-smp", "1",
		"-nodefaults", "-no-user-config", "-nographic", "-no-reboot",
		"-serial", "file:" + g.console,
		"-kernel", "/proc/self/fd/3", "-initrd", "/proc/self/fd/4",
		"-append", guestos.KernelArgs() + " tsc_early_khz=2100000 reboot=t",
		"-netdev", "tap,id=net,fd=5", "-device", "virtio-net-device,netdev=net,mac=" + guestnet.GuestMAC,
		"-blockdev", "driver=file,node-name=disk,filename=" + g.disk, "-device", "virtio-blk-device,drive=disk",
		"-device", "virtio-rng-device",
	}
}

func makeDisk(t *testing.T, path string, spec guestSpec) {
	t.Helper()
	out, err := exec.Command("mke2fs", "-q", "-t", "ext4", "-b", "4096", "-d", spec.image, path, fmt.Sprintf("%dM", spec.imageMiB)).CombinedOutput()
	if err != nil {
		t.Fatalf("mke2fs: %v: %s", err, out)
	}
	if err := os.Truncate(path, int64(spec.diskMiB)<<20); err != nil {
		t.Fatal(err)
	}
}

// dial connects to the agent from the host's side of the link.
func (g *guest) dial(ctx context.Context) (conn net.Conn, err error) {
	err = nsthread.In(g.network.File(), func() error {
		conn, err = new(net.Dialer).DialContext(ctx, "tcp4", guestnet.AgentAddr().String())
		return err
	})
	return conn, err
}

// client makes a client with connections of its own.
func (g *guest) client(token string) agentv1connect.AgentServiceClient {
	client := rpc.HTTPClient(g.dial)
	client.Transport = bearer{token: token, next: client.Transport}
	return agentv1connect.NewAgentServiceClient(client, rpc.BaseURL, connect.WithInterceptors(rpc.Errors()))
}

// bearer puts a token on every request.
type bearer struct {
	token string
	next  http.RoundTripper
}

func (b bearer) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer "+b.token)
	return b.next.RoundTrip(req)
}

// waitReady returns Hello's answer once the agent answers. Until then the guest's kernel does not even refuse.
func (g *guest) waitReady(t *testing.T) *agentv1.HelloResponse {
	t.Helper()
	deadline := time.Now().Add(bootDeadline)
	for time.Now().Before(deadline) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		conn, err := g.dial(ctx)
		cancel()
		if err == nil {
			conn.Close()
			res, err := g.agent.Hello(t.Context(), connect.NewRequest(&agentv1.HelloRequest{}))
			if err != nil {
				t.Fatalf("Hello: %v", err)
			}
			return res.Msg
		}
		select {
		case err := <-g.ended:
			t.Fatalf("the machine ended before it was ready: %v", err)
		default:
		}
	}
	t.Fatal("the guest did not get ready")
	return nil
}
