//go:build realvm

package node_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/api/proto/agent/v1/agentv1connect"
	nodev1 "github.com/space-sandbox/space/api/proto/node/v1"
	"github.com/space-sandbox/space/api/proto/node/v1/nodev1connect"
	"github.com/space-sandbox/space/internal/confine"
	"github.com/space-sandbox/space/internal/datadir"
	"github.com/space-sandbox/space/internal/guestnet"
	"github.com/space-sandbox/space/internal/guestos"
	"github.com/space-sandbox/space/internal/guestos/bootconf"
	"github.com/space-sandbox/space/internal/node"
	"github.com/space-sandbox/space/internal/pool"
	"github.com/space-sandbox/space/internal/rpc"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/sandboxnet/linuxnet"
	"github.com/space-sandbox/space/internal/vmm"
	"github.com/space-sandbox/space/internal/vmm/qemu"
)

// guestDirVariable names the directory with what guestos.Build made.
const guestDirVariable = "SPACE_TEST_GUEST"

// patience bounds each single thing that is waited for: it is ten times what it takes on an idle machine.
const patience = 90 * time.Second

const mib = 1 << 20

// lab is an installation with a small pool, on which nodes come and go.
type lab struct {
	t      *testing.T
	dir    *datadir.Dir
	assets *guestos.Assets
	digest string
	token  string
	log    *logbook
	// reserve is node's Deps.ReserveBytes.
	reserve uint64

	node   *node.Node
	client nodev1connect.NodeServiceClient
	stop   func()
}

// logbook keeps what node logs.
type logbook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logbook) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), text)
}

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	t.Cleanup(cancel)
	return ctx
}

func newLab(t *testing.T, poolMiB int64, reserve uint64) *lab {
	t.Helper()
	assets, err := guestos.Open(os.Getenv(guestDirVariable))
	if err != nil {
		t.Fatalf("%s must name the guest's files: %v", guestDirVariable, err)
	}
	t.Cleanup(func() { assets.Close() })
	run, err := os.MkdirTemp("", "n") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(run) })
	l := &lab{t: t, assets: assets, token: strings.Repeat("ab", 32), log: &logbook{}, reserve: reserve, dir: &datadir.Dir{Path: t.TempDir(), RunRoot: run,
		Installation: datadir.Installation{ID: string(sandbox.NewID())[:6], UIDBase: uint32(1_200_000_000 + os.Getpid()%100_000*1000), UIDCount: 200,
			PoolKind: string(pool.KindLoopXFS)}}}
	if err := os.Mkdir(l.dir.PoolDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := pool.MakeImage(t.Context(), l.dir.PoolImage(), poolMiB*mib, false); err != nil {
		t.Fatal(err)
	}
	if err := pool.Ensure(t.Context(), l.dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pool.Unmount(bounded(t), l.dir); err != nil {
			t.Error(err)
		}
	})
	l.digest = l.template()
	l.start()
	t.Cleanup(l.removeAll)
	return l
}

// template makes one with the test's program and nothing else.
func (l *lab) template() string {
	t := l.t
	t.Helper()
	p := l.pool()
	defer p.Close()
	root := t.TempDir()
	build := exec.Command("go", "build", "-o", filepath.Join(root, "fill"), "./testdata/fill")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	image := filepath.Join(t.TempDir(), "image")
	for _, cmd := range []*exec.Cmd{build, exec.Command("mke2fs", "-q", "-t", "ext4", "-d", root, image, "32M")} {
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
		}
	}
	st, err := p.NewStage("test")
	if err != nil {
		t.Fatal(err)
	}
	f, err := st.CreateRootfs()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(data); err != nil {
		t.Fatal(err)
	}
	digest, err := pool.Digest(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	m := pool.Manifest{Digest: digest, Names: []string{"fill:latest"}, SizeBytes: int64(len(data)), MinDiskMiB: sandbox.MinDiskMiB, CreatedAt: time.Now().UTC()}
	if err := p.InstallTemplate(t.Context(), st, m); err != nil {
		t.Fatal(err)
	}
	return digest
}

func (l *lab) pool() *pool.Pool {
	l.t.Helper()
	p, err := pool.OpenDir(l.dir)
	if err != nil {
		l.t.Fatal(err)
	}
	return p
}

// guest gives machines their kernel and initramfs.
type guest struct{ assets *guestos.Assets }

func (g guest) Open(id sandbox.ID, token string) (kernel, initrd *os.File, args string, err error) {
	if kernel, err = g.assets.OpenKernel(); err != nil {
		return nil, nil, "", err
	}
	if initrd, err = g.assets.MachineInitrd(bootconf.Config{Token: token, SandboxID: string(id)}); err != nil {
		return nil, nil, "", errors.Join(err, kernel.Close())
	}
	return kernel, initrd, guestos.KernelArgs(), nil
}

// start starts a node; stop ends it and leaves its machines.
func (l *lab) start() {
	t := l.t
	t.Helper()
	log := slog.New(slog.NewTextHandler(l.log, nil))
	p := l.pool()
	groups, err := confine.OpenGroups(l.dir.Installation.ID)
	if err != nil {
		t.Fatal(err)
	}
	nets, err := linuxnet.New(linuxnet.Config{InstallationID: l.dir.Installation.ID, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	boot, err := confine.BootID()
	if err != nil {
		t.Fatal(err)
	}
	driver := qemu.New(qemu.Config{Logger: log})
	l.node, err = node.New(t.Context(), node.Deps{Dir: l.dir, Pool: p, Groups: groups, DefaultDriver: driver.Name(), Logger: log, BootID: boot, ReserveBytes: l.reserve,
		Backends: []node.Backend{{Driver: driver, Network: nets, Guest: guest{l.assets}}},
		Probes:   map[string]vmm.Probe{driver.Name(): {Available: true, Isolation: vmm.IsolationEmulated}}})
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(l.dir.RunRoot, "node.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var serving sync.WaitGroup
	serving.Go(func() { _ = rpc.Serve(ctx, listener, l.node.Handler()) })
	caller := rpc.HTTPClient(rpc.DialUnix(socket))
	l.client = nodev1connect.NewNodeServiceClient(caller, rpc.BaseURL)
	l.stop = func() {
		caller.CloseIdleConnections()
		cancel()
		serving.Wait()
		if err := errors.Join(l.node.Close(), p.Close()); err != nil {
			t.Error(err)
		}
	}
}

func (l *lab) removeAll() {
	if err := l.node.RemoveAll(bounded(l.t)); err != nil {
		l.t.Error(err)
	}
	l.stop()
	groups, err := confine.OpenGroups(l.dir.Installation.ID)
	if err == nil {
		err = groups.Prune(bounded(l.t))
	}
	if err != nil {
		l.t.Error(err)
	}
	if l.t.Failed() {
		l.t.Log(l.log.text.String())
	}
}

func (l *lab) ensure(id sandbox.ID, generation int64, keep bool) {
	l.t.Helper()
	_, err := l.client.EnsureMachine(bounded(l.t), connect.NewRequest(&nodev1.EnsureMachineRequest{SandboxId: string(id), Generation: generation,
		TemplateDigest: l.digest, Vcpus: 1, MemoryMib: 256, DiskMib: 2048, AgentToken: l.token, KeepDisk: keep}))
	if err != nil {
		l.t.Fatalf("ensure: %v", err)
	}
}

func (l *lab) remove(id sandbox.ID) {
	l.t.Helper()
	if _, err := l.client.DeleteMachine(bounded(l.t), connect.NewRequest(&nodev1.DeleteMachineRequest{SandboxId: string(id)})); err != nil {
		l.t.Fatalf("delete: %v", err)
	}
}

// await waits until a watcher sees the machine in a state.
func (l *lab) await(id sandbox.ID, want nodev1.MachineState, reason string) {
	l.t.Helper()
	stream, err := l.client.WatchMachines(bounded(l.t), connect.NewRequest(&nodev1.WatchMachinesRequest{}))
	if err != nil {
		l.t.Fatal(err)
	}
	defer stream.Close()
	var last *nodev1.Machine
	for stream.Receive() {
		if m := stream.Msg().GetMachine(); m.GetSandboxId() == string(id) {
			if last = m; m.State == want && m.Reason == reason {
				return
			}
		}
	}
	l.t.Fatalf("the machine is %v, wanted %v %q: %v", last, want, reason, stream.Err())
}

// agent asks the agent of a machine over one connection, which is closed with it.
func (l *lab) agent(ctx context.Context, id sandbox.ID) (agentv1connect.AgentServiceClient, func(), error) {
	conn, err := l.dial(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	caller := rpc.HTTPClient(func(context.Context) (net.Conn, error) { return conn, nil })
	auth := connect.WithInterceptors(connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
			r.Header().Set("Authorization", "Bearer "+l.token)
			return next(ctx, r)
		}
	}))
	return agentv1connect.NewAgentServiceClient(caller, rpc.BaseURL, auth), func() {
		caller.CloseIdleConnections()
		conn.Close()
	}, nil
}

func (l *lab) dial(ctx context.Context, id sandbox.ID) (net.Conn, error) {
	s, err := l.node.AgentSocket(ctx, id)
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
	return net.FileConn(s.File)
}

// call asks the agent, over new connections until one answers.
func (l *lab) call(id sandbox.ID, ask func(context.Context, agentv1connect.AgentServiceClient) error) {
	l.t.Helper()
	ctx := bounded(l.t)
	for {
		err := func() error {
			short, cancel := context.WithTimeout(ctx, 10*time.Second)
			defer cancel()
			agent, end, err := l.agent(short, id)
			if err != nil {
				return err
			}
			defer end()
			return ask(short, agent)
		}()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			l.t.Fatalf("the guest does not answer: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// begin starts a program in the guest and returns its process id.
func (l *lab) begin(id sandbox.ID, argv ...string) string {
	l.t.Helper()
	process := string(sandbox.NewProcessID())
	l.call(id, func(ctx context.Context, a agentv1connect.AgentServiceClient) error {
		_, err := a.CreateProcess(ctx, connect.NewRequest(&agentv1.CreateProcessRequest{ProcessId: process, Spec: &agentv1.ProcessSpec{Argv: argv, Cwd: "/"}}))
		if err != nil && connect.CodeOf(err) != connect.CodeAlreadyExists {
			return err
		}
		_, err = a.StartProcess(ctx, connect.NewRequest(&agentv1.StartProcessRequest{ProcessId: process}))
		return err
	})
	return process
}

// look asks once how a process is.
func (l *lab) look(id sandbox.ID, process string) (p *agentv1.Process) {
	l.t.Helper()
	l.call(id, func(ctx context.Context, a agentv1connect.AgentServiceClient) error {
		r, err := a.GetProcess(ctx, connect.NewRequest(&agentv1.GetProcessRequest{ProcessId: process}))
		if err != nil {
			return err
		}
		p = r.Msg.GetProcess()
		return nil
	})
	return p
}

// finish waits for the end of a process, which must succeed.
func (l *lab) finish(id sandbox.ID, process string) {
	l.t.Helper()
	for end := time.Now().Add(2 * patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		switch p := l.look(id, process); p.GetState() {
		case agentv1.ProcessState_PROCESS_STATE_EXITED, agentv1.ProcessState_PROCESS_STATE_FAILED:
			if p.GetState() != agentv1.ProcessState_PROCESS_STATE_EXITED || p.GetExitCode() != 0 {
				l.t.Fatalf("it failed: %v", p)
			}
			return
		}
	}
	l.t.Fatal("it does not end")
}
