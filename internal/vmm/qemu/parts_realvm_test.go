//go:build realvm

package qemu_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/api/proto/agent/v1/agentv1connect"
	"github.com/space-sandbox/space/internal/confine"
	"github.com/space-sandbox/space/internal/guestnet"
	"github.com/space-sandbox/space/internal/guestos"
	"github.com/space-sandbox/space/internal/guestos/bootconf"
	"github.com/space-sandbox/space/internal/rpc"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/sandboxnet"
	"github.com/space-sandbox/space/internal/sandboxnet/linuxnet"
	"github.com/space-sandbox/space/internal/vmm"
	"github.com/space-sandbox/space/internal/vmm/qemu"
	"github.com/space-sandbox/space/internal/vmm/vmmtest"
)

// guestDirVariable names the directory with what guestos.Build made.
const guestDirVariable = "SPACE_TEST_GUEST"

// patience is ten times what an emulated boot takes on an idle machine.
const patience = 60 * time.Second

// lab is what the machines of one test share.
type lab struct {
	assets *guestos.Assets
	image  string // root disk to copy
	groups *confine.Groups
	nets   *linuxnet.Manager
	uids   *atomic.Uint32
	token  string
}

func newLab(t *testing.T) *lab {
	t.Helper()
	assets, err := guestos.Open(os.Getenv(guestDirVariable))
	if err != nil {
		t.Fatalf("%s must name the guest's files: %v", guestDirVariable, err)
	}
	t.Cleanup(func() { assets.Close() })
	installation := string(sandbox.NewID())[:12]
	groups, err := confine.OpenGroups(installation)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := groups.Prune(bounded(t)); err != nil {
			t.Errorf("Prune: %v", err)
		}
	})
	nets, err := linuxnet.New(linuxnet.Config{InstallationID: installation, Logger: logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{assets: assets, image: makeImage(t), groups: groups, nets: nets, uids: &atomic.Uint32{}, token: strings.Repeat("token", 8)}
	l.uids.Store(uint32(1_000_000 + os.Getpid()%100_000*100))
	return l
}

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	t.Cleanup(cancel)
	return ctx
}

func logger(t *testing.T) *slog.Logger { return slog.New(slog.NewTextHandler(t.Output(), nil)) }

// makeImage makes a root disk with the test programs in it.
func makeImage(t *testing.T) string {
	t.Helper()
	root, image := t.TempDir(), filepath.Join(t.TempDir(), "image")
	build := exec.Command("go", "build", "-o", root+"/", "./testdata/flood", "./testdata/count")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	run(t, build)
	run(t, exec.Command("mke2fs", "-q", "-t", "ext4", "-d", root, image, "64M"))
	return image
}

func run(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
}

func (l *lab) driver(t *testing.T) *qemu.Driver {
	return qemu.New(qemu.Config{Logger: logger(t), KernelArgs: guestos.KernelArgs(), ProbeUID: l.uids.Add(1), ProbeGID: l.uids.Load(),
		Guest: func() (*os.File, *os.File, error) {
			kernel, err := l.assets.OpenKernel()
			if err != nil {
				return nil, nil, err
			}
			initrd, err := l.assets.OpenInitramfs()
			if err != nil {
				return nil, nil, errors.Join(err, kernel.Close())
			}
			return kernel, initrd, nil
		}})
}

// machine makes all parts of a machine.
func (l *lab) machine(t *testing.T) vmmtest.Machine {
	t.Helper()
	spec := vmm.Spec{ID: sandbox.NewID(), Generation: 1, VCPUs: 1, MemoryMiB: 256, KernelArgs: guestos.KernelArgs(),
		GuestMAC: guestnet.GuestMAC, UID: l.uids.Add(1)}
	spec.GID = spec.UID
	dir := t.TempDir()
	spec.RunDir = filepath.Join(dir, "run")
	if err := os.Mkdir(spec.RunDir, 0o700); err != nil {
		t.Fatal(err)
	}
	spec.Kernel = file(t)(l.assets.OpenKernel())
	spec.Initrd = file(t)(l.assets.MachineInitrd(bootconf.Config{Token: l.token, SandboxID: string(spec.ID), Hostname: "test"}))
	spec.RAM = memory(t)
	if err := spec.RAM.Truncate(int64(spec.MemoryMiB) << 20); err != nil {
		t.Fatal(err)
	}
	spec.Disk = l.disk(t, filepath.Join(dir, "disk"))
	group, err := l.groups.Create("vm-"+string(spec.ID), vmm.Limits(spec.VCPUs, spec.MemoryMiB))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := group.Remove(bounded(t)); err != nil {
			t.Errorf("removing the group: %v", err)
		}
	})
	spec.Group = group
	box, err := l.nets.Create(t.Context(), spec.ID)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		box.Close()
		if err := l.nets.Delete(bounded(t), spec.ID); err != nil {
			t.Errorf("removing the network: %v", err)
		}
	})
	spec.Tap = file(t)(box.Tap(t.Context()))
	return vmmtest.Machine{Spec: spec, Hello: l.hello(box), PowerOff: l.powerOff(box), Flood: l.flood(box),
		StartCounting: func(ctx context.Context) error { return l.start(ctx, box, "/count") }, Counted: lastTick()}
}

// lastTick reads the counter from the console, from which everything is read once.
func lastTick() func(context.Context, vmm.Machine) (int64, error) {
	var last atomic.Int64
	return func(ctx context.Context, m vmm.Machine) (int64, error) {
		text, err := m.Console(ctx)
		if err != nil {
			return 0, err
		}
		for line := range strings.Lines(text) {
			var n int64
			if _, err := fmt.Sscanf(line, "tick %d tock\n", &n); err == nil {
				last.Store(max(last.Load(), n))
			}
		}
		return last.Load(), nil
	}
}

// start starts a program of the image.
func (l *lab) start(ctx context.Context, box sandboxnet.Box, program string) error {
	agent, end, err := l.client(ctx, box)
	if err != nil {
		return err
	}
	defer end()
	id := string(sandbox.NewProcessID())
	spec := &agentv1.ProcessSpec{Argv: []string{program}, Cwd: "/"}
	if _, err := agent.CreateProcess(ctx, connect.NewRequest(&agentv1.CreateProcessRequest{ProcessId: id, Spec: spec})); err != nil {
		return err
	}
	_, err = agent.StartProcess(ctx, connect.NewRequest(&agentv1.StartProcessRequest{ProcessId: id}))
	return err
}

// memory is an empty file in memory, as node's machines have it.
func memory(t *testing.T) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("ram", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	return file(t)(os.NewFile(uintptr(fd), "ram"), nil)
}

func file(t *testing.T) func(*os.File, error) *os.File {
	return func(f *os.File, err error) *os.File {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
}

func (l *lab) disk(t *testing.T, path string) *os.File {
	t.Helper()
	image, err := os.ReadFile(l.image)
	if err != nil {
		t.Fatal(err)
	}
	f := file(t)(os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600))
	if err := f.Truncate(int64(len(image))); err != nil {
		t.Fatal(err)
	}
	zeros := make([]byte, 64<<10)
	for at := 0; at < len(image); at += len(zeros) { // keep it sparse
		chunk := image[at:min(at+len(zeros), len(image))]
		if bytes.Equal(chunk, zeros[:len(chunk)]) {
			continue
		}
		if _, err := f.WriteAt(chunk, int64(at)); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// client asks the agent over one connection, which is closed with it.
func (l *lab) client(ctx context.Context, box sandboxnet.Box) (agentv1connect.AgentServiceClient, func(), error) {
	conn, err := dial(ctx, box)
	if err != nil {
		return nil, nil, err
	}
	transport := rpc.HTTPClient(func(context.Context) (net.Conn, error) { return conn, nil })
	auth := connect.WithInterceptors(connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
			r.Header().Set("Authorization", "Bearer "+l.token)
			return next(ctx, r)
		}
	}))
	return agentv1connect.NewAgentServiceClient(transport, "http://space", auth), func() {
		closeIdle(transport)
		conn.Close()
	}, nil
}

func closeIdle(c *http.Client) { c.CloseIdleConnections() }

func dial(ctx context.Context, box sandboxnet.Box) (net.Conn, error) {
	s, err := box.AgentSocket(ctx)
	if err != nil {
		return nil, err
	}
	defer s.File.Close()
	fd := int(s.File.Fd())
	err = unix.Connect(fd, &unix.SockaddrInet4{Addr: guestnet.GuestAddr().As4(), Port: guestnet.AgentPort})
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return nil, err
	}
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 500); err != nil || n == 0 {
		return nil, fmt.Errorf("connecting: %d %w", n, err)
	}
	if code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || code != 0 {
		return nil, errors.Join(err, syscall.Errno(code))
	}
	return net.FileConn(s.File)
}

func (l *lab) hello(box sandboxnet.Box) func(context.Context) error {
	return func(ctx context.Context) error {
		for {
			err := l.tryHello(ctx, box)
			if err == nil {
				return nil
			}
			select {
			case <-ctx.Done():
				return errors.Join(ctx.Err(), err)
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
}

func (l *lab) tryHello(ctx context.Context, box sandboxnet.Box) error {
	agent, end, err := l.client(ctx, box)
	if err != nil {
		return err
	}
	defer end()
	_, err = agent.Hello(ctx, connect.NewRequest(&agentv1.HelloRequest{}))
	return err
}

func (l *lab) powerOff(box sandboxnet.Box) func(context.Context) {
	return func(ctx context.Context) {
		agent, end, err := l.client(ctx, box)
		if err != nil {
			return
		}
		defer end()
		_, _ = agent.Shutdown(ctx, connect.NewRequest(&agentv1.ShutdownRequest{}))
	}
}

// flood runs the program of the image and waits for its end.
func (l *lab) flood(box sandboxnet.Box) func(context.Context) error {
	return func(ctx context.Context) error {
		agent, end, err := l.client(ctx, box)
		if err != nil {
			return err
		}
		defer end()
		id := string(sandbox.NewProcessID())
		spec := &agentv1.ProcessSpec{Argv: []string{"/flood"}, Cwd: "/"}
		if _, err := agent.CreateProcess(ctx, connect.NewRequest(&agentv1.CreateProcessRequest{ProcessId: id, Spec: spec})); err != nil {
			return err
		}
		if _, err := agent.StartProcess(ctx, connect.NewRequest(&agentv1.StartProcessRequest{ProcessId: id})); err != nil {
			return err
		}
		for {
			r, err := agent.GetProcess(ctx, connect.NewRequest(&agentv1.GetProcessRequest{ProcessId: id}))
			if err != nil {
				return err
			}
			p := r.Msg.GetProcess()
			switch p.GetState() {
			case agentv1.ProcessState_PROCESS_STATE_EXITED:
				if p.GetExitCode() != 0 {
					return fmt.Errorf("flood: %v", p)
				}
				return nil
			case agentv1.ProcessState_PROCESS_STATE_FAILED:
				return fmt.Errorf("flood: %v", p)
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
}
