package fake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/space-sandbox/space/internal/confine"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/vmm"
	"github.com/space-sandbox/space/internal/vmm/fake/fakeagent"
)

// AgentSocketName is the agent's unix socket in a machine's RunDir.
const AgentSocketName = "agent.sock"

const driverName = "fake"

// Config is what a Driver is made of. Logger is required, and one of Agent and Host.
type Config struct {
	// AllowFake says that the operator has set SPACE_ALLOW_FAKE=1.
	AllowFake bool
	// Agent is the program space-agent, for machines that are processes.
	Agent []byte
	// Host, when not nil, has machines inside this process instead.
	Host *Host
	// TempDir is where machines get their directories; "" is the system's.
	TempDir string
	Logger  *slog.Logger
}

// Driver is the fake vmm.Driver.
type Driver struct {
	cfg   Config
	agent func() (*os.File, error) // the program, as a file in memory
}

var (
	_ vmm.Driver  = (*Driver)(nil)
	_ vmm.Sweeper = (*Driver)(nil)
)

// New makes a driver. It refuses to unless the fake is allowed.
func New(cfg Config) (*Driver, error) {
	if !cfg.AllowFake {
		return nil, &sandbox.Error{Code: sandbox.CodeDriverUnavailable, Message: "the fake driver is not allowed",
			Cause:  "it runs the commands of sandboxes on this host without isolation",
			Remedy: "use qemu, or set SPACE_ALLOW_FAKE=1 on a machine that may be lost"}
	}
	if cfg.Host == nil && len(cfg.Agent) == 0 {
		return nil, errors.New("fake: neither Agent nor Host is given")
	}
	return &Driver{cfg: cfg, agent: sync.OnceValues(func() (*os.File, error) { return programFile(cfg.Agent) })}, nil
}

// Name is "fake".
func (d *Driver) Name() string { return driverName }

// Probe says what it is.
func (d *Driver) Probe(context.Context) vmm.Probe {
	return vmm.Probe{Available: true, Isolation: vmm.IsolationNone, Version: "fake",
		Reason: "SPACE_ALLOW_FAKE=1: commands run on this host without isolation"}
}

// private is the driver's part of a State.
type private struct {
	Socket string `json:"socket"`
	Root   string `json:"root"` // the machine's directory
}

// Boot starts an agent. Only ID, MemoryMiB, AgentToken, RunDir, UID, GID and Group of the spec mean something.
func (d *Driver) Boot(ctx context.Context, spec vmm.Spec) (vmm.Machine, error) {
	m, err := d.boot(ctx, spec)
	if err != nil {
		return nil, bootError(err)
	}
	return m, nil
}

func (d *Driver) boot(ctx context.Context, spec vmm.Spec) (_ *machine, err error) {
	if err := errors.Join(ctx.Err(), check(spec)); err != nil {
		return nil, err
	}
	p := private{Socket: filepath.Join(spec.RunDir, AgentSocketName)}
	if p.Root, err = makeRoot(d.cfg.TempDir, spec); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(p.Root))
		}
	}()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: p.Socket, Net: "unix"})
	if err != nil {
		return nil, err
	}
	listener.SetUnlinkOnClose(false)
	launch := d.startProcess
	if d.cfg.Host != nil {
		launch = d.cfg.Host.start
	}
	body, err := launch(spec, p, listener, d.cfg.Logger.With("sandbox", spec.ID))
	if err != nil {
		return nil, errors.Join(err, listener.Close(), os.Remove(p.Socket))
	}
	return newMachine(body, p, d.cfg.Logger), nil
}

func check(spec vmm.Spec) error {
	root := os.Getuid() == 0
	switch {
	case spec.UID == 0 || spec.GID == 0:
		return errors.New("a fake machine must not run as root")
	case !root && int(spec.UID) != os.Getuid():
		return fmt.Errorf("this process cannot become uid %d", spec.UID)
	case !filepath.IsAbs(spec.RunDir):
		return fmt.Errorf("the run directory %q is not absolute", spec.RunDir)
	case spec.AgentToken == "":
		return errors.New("there is no token for the agent")
	}
	return nil
}

// rootPrefix begins the names of machines' directories.
const rootPrefix = "space-fake-"

// makeRoot makes a machine's directory: a home directory, and a user database in which all names are one uid.
func makeRoot(temp string, spec vmm.Spec) (_ string, err error) {
	root, err := os.MkdirTemp(temp, rootPrefix+string(spec.ID)+"-")
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(root))
		}
	}()
	for _, dir := range []string{fakeagent.Etc(root), fakeagent.Home(root)} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return "", err
		}
	}
	ids := strconv.Itoa(int(spec.UID)) + ":" + strconv.Itoa(int(spec.GID))
	users := ""
	for _, name := range []string{"root", "user"} {
		users += name + ":x:" + ids + "::" + fakeagent.Home(root) + ":/bin/sh\n"
	}
	//nolint:gosec // any uid reads it, as /etc/passwd
	if err := os.WriteFile(filepath.Join(fakeagent.Etc(root), "passwd"), []byte(users), 0o644); err != nil {
		return "", err
	}
	for _, dir := range []string{fakeagent.Home(root), root} {
		if err := os.Chown(dir, int(spec.UID), int(spec.GID)); err != nil {
			return "", err
		}
	}
	return root, nil
}

// Adopt finds a machine again.
func (d *Driver) Adopt(ctx context.Context, state vmm.State) (vmm.Machine, error) {
	var p private
	err := json.Unmarshal(state.Private, &p)
	if err != nil || state.Driver != driverName || !filepath.IsAbs(p.Socket) || !filepath.IsAbs(p.Root) {
		return nil, fmt.Errorf("fake: not a state of this driver: %w", errors.Join(err, vmm.ErrGone))
	}
	var body body
	if d.cfg.Host != nil {
		body, err = d.cfg.Host.adopt(state.Process)
	} else {
		body, err = adoptProcess(state.Process)
	}
	if errors.Is(err, confine.ErrGone) || errors.Is(err, confine.ErrNotOurs) {
		return nil, errors.Join(fmt.Errorf("fake: %w: %w", vmm.ErrGone, err), forget(ctx, p))
	}
	if err != nil {
		return nil, fmt.Errorf("fake: %w", err)
	}
	return newMachine(body, p, d.cfg.Logger), nil
}

// forget removes what a machine left that ended while nobody watched it. One whose agent still answers was meant by
// another state.
func forget(ctx context.Context, p private) error {
	if conn, err := new(net.Dialer).DialContext(ctx, "unix", p.Socket); err == nil {
		return conn.Close()
	}
	if !strings.HasPrefix(filepath.Base(p.Root), rootPrefix) {
		return fmt.Errorf("fake: %s is not a machine's directory", p.Root)
	}
	return errors.Join(removeIfThere(p.Socket), os.RemoveAll(p.Root))
}

// Sweep removes the directories of a machine whose start was cut off.
func (d *Driver) Sweep(_ context.Context, id sandbox.ID) error {
	temp := d.cfg.TempDir
	if temp == "" {
		temp = os.TempDir()
	}
	roots, err := filepath.Glob(filepath.Join(temp, rootPrefix+string(id)+"-*"))
	for _, root := range roots {
		err = errors.Join(err, os.RemoveAll(root))
	}
	return err
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func bootError(err error) error {
	e := &sandbox.Error{Code: sandbox.CodeVMMFailed, Message: "the fake machine could not be started",
		Cause: err.Error(), Remedy: "see the log of node", Err: err}
	if errors.Is(err, context.Canceled) {
		e.Code, e.Remedy = sandbox.CodeCanceled, ""
	}
	return e
}

// changeError is the form in which a failed Pause or Resume reaches people.
func changeError(err error) error {
	return &sandbox.Error{Code: sandbox.CodeVMMFailed, Message: "the fake machine does not obey",
		Cause: err.Error(), Remedy: "try again; deleting the sandbox always works", Err: err}
}
