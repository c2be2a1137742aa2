//go:build realvm

package redteam_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/internal/confine"
	"github.com/space-sandbox/space/internal/guest"
	"github.com/space-sandbox/space/internal/guestnet"
	"github.com/space-sandbox/space/internal/guestos"
	"github.com/space-sandbox/space/internal/guestos/bootconf"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/sandboxnet"
	"github.com/space-sandbox/space/internal/vmm"
	"github.com/space-sandbox/space/internal/vmm/qemu"
	"github.com/space-sandbox/space/test/redteam/finding"
)

const (
	// guestDirVariable names the directory with the guest's kernel and initramfs.
	guestDirVariable = "SPACE_TEST_GUEST"
	bootLimit        = 90 * time.Second
	probeLimit       = 5 * time.Minute
)

// TestNothingLeaves runs the probe as root inside a real guest whose disk holds nothing else, and the positive control
// beside it. Its summary is the last line of the red team.
func TestNothingLeaves(t *testing.T) {
	control := positiveControl(t)
	installation, id := string(sandbox.NewID()[:6]), sandbox.NewID()
	box := newBox(t, installation, id)
	agent := bootGuest(t, installation, id, box)
	s := besiege(t, installation, id)
	findings := attackFromInside(t, agent, s)
	verdict := s.judge(t, findings)
	verdict.PositiveControlsFailed = control.PositiveControlsFailed
	// The guest must be as usable as before: a sandbox that blocks everything by being broken proves nothing.
	if _, err := agent.Hello(t.Context()); err != nil {
		verdict.ReferenceBroken++
		t.Errorf("the agent does not answer after the attack: %v", err)
	}
	fmt.Println(verdict)
}

// bootGuest boots a machine on a box and waits for its agent.
func bootGuest(t *testing.T, installation string, id sandbox.ID, box sandboxnet.Box) *guest.Client {
	t.Helper()
	assets, err := guestos.Open(os.Getenv(guestDirVariable))
	if err != nil {
		t.Fatalf("%s must name the guest's files: %v", guestDirVariable, err)
	}
	t.Cleanup(func() { assets.Close() })
	token := strings.Repeat("token", 8)
	dir := t.TempDir()
	uid := uint32(1_500_000 + os.Getpid()%100_000)
	spec := vmm.Spec{ID: id, Generation: 1, VCPUs: 1, MemoryMiB: 256, KernelArgs: guestos.KernelArgs(),
		GuestMAC: guestnet.GuestMAC, UID: uid, GID: uid, RunDir: filepath.Join(dir, "run")}
	if err := os.Mkdir(spec.RunDir, 0o700); err != nil {
		t.Fatal(err)
	}
	spec.Kernel = opened(t)(assets.OpenKernel())
	spec.Initrd = opened(t)(assets.MachineInitrd(bootconf.Config{Token: token, SandboxID: string(id), Hostname: "redteam"}))
	spec.RAM = opened(t)(os.OpenFile(filepath.Join(dir, "ram"), os.O_RDWR|os.O_CREATE, 0o600))
	if err := spec.RAM.Truncate(int64(spec.MemoryMiB) << 20); err != nil {
		t.Fatal(err)
	}
	spec.Disk = opened(t)(os.OpenFile(probeDisk(t), os.O_RDWR, 0))
	spec.Group = newGroup(t, installation, spec)
	spec.Tap = opened(t)(box.Tap(t.Context()))
	bootMachine(t, spec, assets)

	agent := guest.NewClient(guest.Config{Token: token,
		Dial: func(ctx context.Context) (net.Conn, error) { return dialAgent(ctx, box) }})
	t.Cleanup(agent.Close)
	ctx, cancel := context.WithTimeout(t.Context(), bootLimit)
	defer cancel()
	if _, err := agent.AwaitHello(ctx); err != nil {
		t.Fatalf("the guest is not ready: %v", err)
	}
	return agent
}

func bootMachine(t *testing.T, spec vmm.Spec, assets *guestos.Assets) {
	t.Helper()
	driver := qemu.New(qemu.Config{Logger: slog.New(slog.NewTextHandler(t.Output(), nil)), KernelArgs: guestos.KernelArgs(),
		ProbeUID: spec.UID + 1, ProbeGID: spec.UID + 1,
		Guest: func() (*os.File, *os.File, error) {
			kernel, err := assets.OpenKernel()
			if err != nil {
				return nil, nil, err
			}
			initrd, err := assets.OpenInitramfs()
			if err != nil {
				return nil, nil, errors.Join(err, kernel.Close())
			}
			return kernel, initrd, nil
		}})
	if p := driver.Probe(t.Context()); !p.Available {
		t.Fatalf("QEMU does not work here: %s", p.Reason)
	}
	machine, err := driver.Boot(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if console, err := machine.Console(ctx); t.Failed() && err == nil {
			t.Logf("console: %s", console)
		}
		if err := errors.Join(machine.Kill(ctx), machine.Close()); err != nil {
			t.Error(err)
		}
	})
}

func newGroup(t *testing.T, installation string, spec vmm.Spec) *confine.Group {
	t.Helper()
	groups, err := confine.OpenGroups(installation)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := groups.Prune(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	group, err := groups.Create("vm-"+string(spec.ID), vmm.Limits(spec.VCPUs, spec.MemoryMiB))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := group.Remove(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return group
}

// probeDisk makes a root disk with the probe on it and nothing else.
func probeDisk(t *testing.T) string {
	t.Helper()
	root := filepath.Dir(buildProbe(t))
	disk := filepath.Join(t.TempDir(), "disk")
	if out, err := exec.Command("mke2fs", "-q", "-t", "ext4", "-d", root, disk, "64M").CombinedOutput(); err != nil {
		t.Fatalf("mke2fs: %v\n%s", err, out)
	}
	return disk
}

func opened(t *testing.T) func(*os.File, error) *os.File {
	return func(f *os.File, err error) *os.File {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
}

// dialAgent connects as the gateway does.
func dialAgent(ctx context.Context, box sandboxnet.Box) (net.Conn, error) {
	s, err := box.AgentSocket(ctx)
	if err != nil {
		return nil, err
	}
	defer s.File.Close()
	fd := int(s.File.Fd())
	if err := unix.SetNonblock(fd, true); err != nil { // Fd may have changed it
		return nil, err
	}
	err = unix.Connect(fd, &unix.SockaddrInet4{Addr: guestnet.GuestAddr().As4(), Port: guestnet.AgentPort})
	for errors.Is(err, unix.EINPROGRESS) || errors.Is(err, unix.EALREADY) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 50); err != nil && !errors.Is(err, unix.EINTR) {
			return nil, err
		}
		err = unix.Connect(fd, &unix.SockaddrInet4{Addr: guestnet.GuestAddr().As4(), Port: guestnet.AgentPort})
	}
	if err != nil && !errors.Is(err, unix.EISCONN) {
		return nil, err
	}
	return net.FileConn(s.File)
}

// attackFromInside hands the guest its plan, runs the probe there as root and reads its report.
func attackFromInside(t *testing.T, agent *guest.Client, s *siege) []finding.Finding {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), probeLimit)
	defer cancel()
	plan, err := os.Open(writePlan(t, s.plan))
	if err != nil {
		t.Fatal(err)
	}
	defer plan.Close()
	info, err := plan.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := agent.PutFile(ctx, url.Values{"path": {"/plan.json"}, "user": {"root"}}, plan, info.Size()); err != nil {
		t.Fatal(err)
	}
	id := sandbox.NewProcessID()
	spec := &agentv1.ProcessSpec{Argv: []string{"/probe", "-plan", "/plan.json"}, Cwd: "/", User: "root"}
	if _, err := agent.CreateProcess(ctx, id, spec); err != nil {
		t.Fatal(err)
	}
	a, err := agent.Attach(ctx, &agentv1.AttachRequest{ProcessId: string(id), Start: true, Follow: true,
		Positions: []*agentv1.StreamPosition{{Stream: agentv1.OutputStream_OUTPUT_STREAM_STDOUT},
			{Stream: agentv1.OutputStream_OUTPUT_STREAM_STDERR}}})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	return parseFindings(t, collect(t, a))
}

// collect reads a process's output to its end, which must be a good one.
func collect(t *testing.T, a *guest.Attachment) string {
	t.Helper()
	var out, errs bytes.Buffer
	for {
		event, err := a.Receive()
		if errors.Is(err, io.EOF) {
			return out.String()
		}
		if err != nil {
			t.Fatalf("output of the probe: %v\n%s", err, errs.String())
		}
		if d := event.GetData(); d != nil {
			if d.GetStream() == agentv1.OutputStream_OUTPUT_STREAM_STDERR {
				errs.Write(d.GetData())
			} else {
				out.Write(d.GetData())
			}
		}
		if p := event.GetExit(); p != nil && p.GetExitCode() != 0 {
			t.Fatalf("the probe has ended with %v: %s", p, errs.String())
		}
	}
}
