package fake_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/api/proto/agent/v1/agentv1connect"
	"github.com/space-sandbox/space/internal/confine"
	"github.com/space-sandbox/space/internal/rpc"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/vmm"
	"github.com/space-sandbox/space/internal/vmm/fake"
	"github.com/space-sandbox/space/internal/vmm/fake/fakeagent"
	"github.com/space-sandbox/space/internal/vmm/vmmtest"
)

const patience = 20 * time.Second

func logger(t *testing.T) *slog.Logger { return slog.New(slog.NewTextHandler(t.Output(), nil)) }

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	t.Cleanup(cancel)
	return ctx
}

// lab makes parts of machines; groups is nil for machines without limits.
type lab struct {
	uids   atomic.Uint32
	groups *confine.Groups
	temp   string
}

func newLab(t *testing.T) *lab {
	l := &lab{temp: t.TempDir()}
	for dir := l.temp; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o711); err != nil { // the machine's uid must get through to its directory
			t.Fatal(err)
		}
	}
	l.uids.Store(uint32(2_000_000 + os.Getpid()%100_000*100))
	return l
}

func (l *lab) machine(t *testing.T) vmmtest.Machine {
	t.Helper()
	uid := l.uids.Add(1)
	spec := vmm.Spec{ID: sandbox.NewID(), VCPUs: 1, MemoryMiB: 128, UID: uid, GID: uid, AgentToken: strings.Repeat("token", 8)}
	spec.RunDir = t.TempDir()
	if l.groups != nil {
		g, err := l.groups.Create("vm-"+string(spec.ID), confine.Limits{PIDs: 64})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := g.Remove(bounded(t)); err != nil {
				t.Error(err)
			}
		})
		spec.Group = g
	}
	return vmmtest.Machine{Spec: spec,
		Hello: func(ctx context.Context) error {
			_, err := ask(ctx, spec, func(a agentv1connect.AgentServiceClient) (*connect.Response[agentv1.HelloResponse], error) {
				return a.Hello(ctx, connect.NewRequest(&agentv1.HelloRequest{}))
			})
			return err
		},
		PowerOff: func(ctx context.Context) {
			_, _ = ask(ctx, spec, func(a agentv1connect.AgentServiceClient) (*connect.Response[agentv1.ShutdownResponse], error) {
				return a.Shutdown(ctx, connect.NewRequest(&agentv1.ShutdownRequest{}))
			})
		},
		StartCounting: func(ctx context.Context) error {
			// In a session of its own and by a child, as commands are.
			return start(ctx, spec, `setsid sh -c 'i=0; while :; do i=$((i+1)); echo $i > count.new; mv count.new count; sleep 0.01; done'`)
		},
		Counted: func(_ context.Context, m vmm.Machine) (int64, error) { return counted(m.State()) },
	}
}

// start starts a shell in the home directory.
func start(ctx context.Context, spec vmm.Spec, script string) error {
	id := string(sandbox.NewProcessID())
	p := &agentv1.ProcessSpec{Argv: []string{"/bin/sh", "-c", script}}
	if _, err := ask(ctx, spec, func(a agentv1connect.AgentServiceClient) (*connect.Response[agentv1.CreateProcessResponse], error) {
		return a.CreateProcess(ctx, connect.NewRequest(&agentv1.CreateProcessRequest{ProcessId: id, Spec: p}))
	}); err != nil {
		return err
	}
	_, err := ask(ctx, spec, func(a agentv1connect.AgentServiceClient) (*connect.Response[agentv1.StartProcessResponse], error) {
		return a.StartProcess(ctx, connect.NewRequest(&agentv1.StartProcessRequest{ProcessId: id}))
	})
	return err
}

// counted reads the counter in the machine's home directory.
func counted(state vmm.State) (int64, error) {
	var private struct{ Root string }
	if err := json.Unmarshal(state.Private, &private); err != nil {
		return 0, err
	}
	data, err := os.ReadFile(filepath.Join(fakeagent.Home(private.Root), "count"))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
}

// ask calls the agent over a connection of its own.
func ask[T any](ctx context.Context, spec vmm.Spec, call func(agentv1connect.AgentServiceClient) (*connect.Response[T], error)) (*T, error) {
	client := rpc.HTTPClient(rpc.DialUnix(filepath.Join(spec.RunDir, fake.AgentSocketName)))
	defer client.CloseIdleConnections()
	auth := connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
			r.Header().Set("Authorization", "Bearer "+spec.AgentToken)
			return next(ctx, r)
		}
	})
	r, err := call(agentv1connect.NewAgentServiceClient(client, "http://space", connect.WithInterceptors(auth)))
	if err != nil {
		return nil, err
	}
	return r.Msg, nil
}

func broken() map[string]func(*testing.T, *vmm.Spec) {
	return map[string]func(*testing.T, *vmm.Spec){
		"root":             func(_ *testing.T, s *vmm.Spec) { s.UID, s.GID = 0, 0 },
		"no token":         func(_ *testing.T, s *vmm.Spec) { s.AgentToken = "" },
		"no run directory": func(_ *testing.T, s *vmm.Spec) { s.RunDir = "/nonexistent/run" },
		"long run directory": func(t *testing.T, s *vmm.Spec) {
			s.RunDir = filepath.Join(t.TempDir(), strings.Repeat("x", 100))
			if err := os.Mkdir(s.RunDir, 0o700); err != nil {
				t.Fatal(err)
			}
		},
	}
}

func TestProcesses(t *testing.T) {
	agent := buildAgent(t)
	for _, limited := range []bool{false, true} {
		t.Run(fmt.Sprintf("limited=%t", limited), func(t *testing.T) {
			l := newLab(t)
			if limited {
				l.groups = openGroups(t)
			}
			vmmtest.Run(t, func(*testing.T) vmmtest.Setup {
				return vmmtest.Setup{Isolation: vmm.IsolationNone, Machine: l.machine, Patience: patience, Broken: broken(),
					Driver: func(t *testing.T) vmm.Driver {
						return newDriver(t, fake.Config{AllowFake: true, Agent: agent, TempDir: l.temp, Logger: logger(t)})
					}}
			})
			if left, err := os.ReadDir(l.temp); err != nil || len(left) > 0 {
				t.Errorf("directories of machines left: %v %v", left, err)
			}
		})
	}
}

func TestInsideThisProcess(t *testing.T) {
	l, host := newLab(t), fake.NewHost()
	t.Cleanup(host.Close)
	vmmtest.Run(t, func(*testing.T) vmmtest.Setup {
		return vmmtest.Setup{Isolation: vmm.IsolationNone, Patience: patience, Broken: broken(),
			Driver: func(t *testing.T) vmm.Driver {
				return newDriver(t, fake.Config{AllowFake: true, Host: host, TempDir: l.temp, Logger: slog.New(slog.DiscardHandler)})
			},
			Machine: func(t *testing.T) vmmtest.Machine {
				m := l.machine(t)
				m.EndOutside = host.End
				return m
			}}
	})
	if left, err := os.ReadDir(l.temp); err != nil || len(left) > 0 {
		t.Errorf("directories of machines left: %v %v", left, err)
	}
}

func openGroups(t *testing.T) *confine.Groups {
	t.Helper()
	groups, err := confine.OpenGroups("f" + string(sandbox.NewID()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := groups.Prune(bounded(t)); err != nil {
			t.Error(err)
		}
	})
	return groups
}

func buildAgent(t *testing.T) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "space-agent")
	cmd := exec.Command("go", "build", "-o", path, "github.com/space-sandbox/space/cmd/space-agent")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	program, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return program
}

func newDriver(t *testing.T, cfg fake.Config) *fake.Driver {
	t.Helper()
	d, err := fake.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestRefusedUnlessAllowed(t *testing.T) {
	t.Parallel()
	_, err := fake.New(fake.Config{Host: fake.NewHost(), Logger: logger(t)})
	if e, ok := errors.AsType[*sandbox.Error](err); !ok || e.Code != sandbox.CodeDriverUnavailable || e.Remedy == "" {
		t.Errorf("got %v", err)
	}
}

// TestCommandsAreNobody: whatever user is asked for, a command has the machine's uid and no other, and what it leaves
// behind ends with the machine.
func TestCommandsAreNobody(t *testing.T) {
	agent := buildAgent(t)
	l := newLab(t) // one for all: it hands out uids
	for name, cfg := range map[string]fake.Config{"process": {Agent: agent}, "inside": {Host: fake.NewHost()}} {
		t.Run(name, func(t *testing.T) {
			cfg.AllowFake, cfg.TempDir, cfg.Logger = true, l.temp, slog.New(slog.DiscardHandler)
			parts := l.machine(t)
			m, err := newDriver(t, cfg).Boot(t.Context(), parts.Spec)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			if err := parts.Hello(bounded(t)); err != nil {
				t.Fatal(err)
			}
			for user, allowed := range map[string]bool{"": true, "root": true, "user": true, fmt.Sprint(parts.Spec.UID): true, "0": false, "1": false, "daemon": false} {
				p := runToEnd(t, parts.Spec, &agentv1.ProcessSpec{User: user, Argv: []string{"/bin/sh", "-c", `exit $(( $(id -u) - ` + fmt.Sprint(parts.Spec.UID) + ` + 40 ))`}})
				if allowed && p.GetExitCode() != 40 || !allowed && p.GetState() != agentv1.ProcessState_PROCESS_STATE_FAILED {
					t.Errorf("user %q: %v", user, p)
				}
			}
			p := runToEnd(t, parts.Spec, &agentv1.ProcessSpec{Argv: []string{"/bin/sh", "-c", `setsid sleep 600 </dev/null >/dev/null 2>&1 & exit 0`}})
			if p.GetExitCode() != 0 {
				t.Errorf("%v", p)
			}
			if err := m.Kill(bounded(t)); err != nil {
				t.Fatal(err)
			}
			out, err := exec.Command("ps", "-o", "stat=,pid=,args=", "-u", fmt.Sprint(parts.Spec.UID)).Output()
			for line := range strings.Lines(string(out)) {
				if !strings.HasPrefix(line, "Z") { // an orphan is init's to reap
					t.Errorf("left: %s %v", line, err)
				}
			}
			if _, err := net.Dial("unix", filepath.Join(parts.Spec.RunDir, fake.AgentSocketName)); err == nil {
				t.Error("the agent still listens")
			}
		})
	}
}

func runToEnd(t *testing.T, spec vmm.Spec, p *agentv1.ProcessSpec) *agentv1.Process {
	t.Helper()
	ctx, id := bounded(t), string(sandbox.NewProcessID())
	_, err := ask(ctx, spec, func(a agentv1connect.AgentServiceClient) (*connect.Response[agentv1.CreateProcessResponse], error) {
		return a.CreateProcess(ctx, connect.NewRequest(&agentv1.CreateProcessRequest{ProcessId: id, Spec: p}))
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = ask(ctx, spec, func(a agentv1connect.AgentServiceClient) (*connect.Response[agentv1.StartProcessResponse], error) {
		return a.StartProcess(ctx, connect.NewRequest(&agentv1.StartProcessRequest{ProcessId: id}))
	})
	if err != nil {
		t.Fatal(err)
	}
	for look := time.NewTicker(5 * time.Millisecond); ; <-look.C {
		r, err := ask(ctx, spec, func(a agentv1connect.AgentServiceClient) (*connect.Response[agentv1.GetProcessResponse], error) {
			return a.GetProcess(ctx, connect.NewRequest(&agentv1.GetProcessRequest{ProcessId: id}))
		})
		if err != nil {
			t.Fatal(err)
		}
		if s := r.GetProcess().GetState(); s == agentv1.ProcessState_PROCESS_STATE_EXITED || s == agentv1.ProcessState_PROCESS_STATE_FAILED {
			return r.GetProcess()
		}
	}
}
