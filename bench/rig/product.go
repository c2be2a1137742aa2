// Package rig is what the benchmarks share: an installation of the product that lives as long as one of them, and how
// figures are summed up.
package rig

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
)

// Options say what is measured.
type Options struct {
	Space  string // the program
	Assets string // bundle made by space assets build, with the template mini
	Driver string // qemu (also when empty) or fake
	Memory int    // MiB of a machine
	Disk   int    // MiB of a machine's disk
}

// Product is an installation of its own with a running space up. Not safe for concurrent use.
type Product struct {
	Dir    string // the data directory
	Client *client.Client

	opts                     Options
	space, parent            string
	up                       *exec.Cmd
	log                      tail
	isolation, version, pool string
}

// The drivers.
const (
	qemu = "qemu"
	fake = "fake"
)

// How long things may take before the benchmark gives up.
const (
	readyLimit  = 2 * time.Minute
	createLimit = 2 * time.Minute // also of a delete
	downLimit   = 3 * time.Minute
)

// Install sets up and starts; on error nothing is left. End it with Remove.
func Install(ctx context.Context, o Options) (_ *Product, err error) {
	space, err := filepath.Abs(o.Space)
	if err != nil {
		return nil, err
	}
	parent, err := os.MkdirTemp("", "space-bench-")
	if err != nil {
		return nil, err
	}
	if o.Driver == "" {
		o.Driver = qemu
	}
	p := &Product{opts: o, space: space, parent: parent, Dir: filepath.Join(parent, "d")}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Remove())
		}
	}()
	if err := os.Chmod(parent, 0o755); err != nil { // the parts are other users
		return nil, err
	}
	if err := p.run(ctx, "setup", "--no-install", "--templates", "mini", "--pool-sparse", "--pool-size", "8192", "--assets", o.Assets); err != nil {
		return nil, err
	}
	if err := p.start(ctx); err != nil {
		return nil, err
	}
	return p, p.describe(ctx)
}

// run runs one command of the CLI; its output is shown only when it fails.
func (p *Product) run(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, p.space, append(args, "--data-dir", p.Dir)...)
	cmd.Env = p.environment()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("space %s: %w\n%s", args[0], err, out)
	}
	return nil
}

// environment allows the fake driver when it is what was asked for.
func (p *Product) environment() []string {
	if p.opts.Driver == fake {
		return append(os.Environ(), "SPACE_ALLOW_FAKE=1")
	}
	return os.Environ()
}

// start runs space up until it says that it is ready.
func (p *Product) start(ctx context.Context) error {
	p.up = exec.Command(p.space, "up", "--data-dir", p.Dir, "--listen", "127.0.0.1:0", "--data-listen", "127.0.0.1:0", "--driver", p.opts.Driver)
	p.up.Env = p.environment()
	stderr, err := p.up.StderrPipe()
	if err != nil {
		return err
	}
	if err := p.up.Start(); err != nil {
		p.up = nil
		return err
	}
	ready := make(chan string, 1)
	go watch(io.TeeReader(stderr, &p.log), ready)
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	select {
	case line, ok := <-ready:
		if !ok {
			return fmt.Errorf("space up has ended before it was ready\n%s", p.log.text())
		}
		key, err := os.ReadFile(filepath.Join(p.Dir, "admin.key"))
		if err != nil {
			return err
		}
		p.Client = client.New("http://"+field(line, "listen"), strings.TrimSpace(string(key)))
		return nil
	case <-ctx.Done():
		return fmt.Errorf("space up is not ready: %w\n%s", ctx.Err(), p.log.text())
	}
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	last []byte
}

func (t *tail) Write(p []byte) (int, error) {
	const kept = 4096
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = append(t.last, p...)
	t.last = t.last[max(0, len(t.last)-kept):]
	return len(p), nil
}

func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.last)
}

// watch reads the log to its end, so that space up never waits for a reader, and hands on the line that says ready.
func watch(log io.Reader, ready chan<- string) {
	defer close(ready)
	said := false
	for lines := bufio.NewScanner(log); lines.Scan(); {
		if line := lines.Text(); !said && strings.Contains(line, "msg=ready") {
			said = true
			ready <- line
		}
	}
}

// field returns the value of key in a line of slog's text form.
func field(line, key string) string {
	for f := range strings.FieldsSeq(line) {
		if v, ok := strings.CutPrefix(f, key+"="); ok {
			return v
		}
	}
	return ""
}

// describe asks what the machines will run on.
func (p *Product) describe(ctx context.Context) error {
	node, err := p.Client.Node(ctx)
	if err != nil {
		return err
	}
	p.pool = node.Pool.Kind
	for _, d := range node.Drivers {
		if d.Name == p.opts.Driver && d.Available {
			p.isolation, p.version = d.Isolation, d.Version
			return nil
		}
	}
	return fmt.Errorf("the driver %s does not work here", p.opts.Driver)
}

// Conditions are what all benchmarks say about where they ran.
func (p *Product) Conditions() map[string]any {
	return map[string]any{"driver": p.opts.Driver, "isolation": p.isolation, "vmm_version": p.version, "pool": p.pool,
		"template": "mini", "vcpus": 1, "memory_mib": p.opts.Memory, "disk_mib": p.opts.Disk, "host_cpus": runtime.NumCPU()}
}

// Accel is the accelerator that the driver uses.
func (p *Product) Accel() string {
	if p.isolation == "microvm/kvm" {
		return "kvm"
	}
	return "tcg"
}

// Create makes a sandbox and waits until it runs.
func (p *Product) Create(ctx context.Context) (*apiv1.Lifecycle, error) {
	ctx, cancel := context.WithTimeout(ctx, createLimit)
	defer cancel()
	made, err := p.Client.CreateSandbox(ctx, p.spec(), client.Wait(createLimit))
	if err != nil {
		return nil, err
	}
	if made.Sandbox.State != "running" {
		return nil, fmt.Errorf("the sandbox is %s: %+v", made.Sandbox.State, made.Operation.Error)
	}
	return made, nil
}

// Accept asks for a sandbox and does not wait for it.
func (p *Product) Accept(ctx context.Context) (*apiv1.Lifecycle, error) {
	return p.Client.CreateSandbox(ctx, p.spec())
}

func (p *Product) spec() apiv1.CreateSandbox {
	return apiv1.CreateSandbox{Template: "mini", MemoryMiB: &p.opts.Memory, DiskMiB: &p.opts.Disk}
}

// Delete removes a sandbox, also when ctx has ended.
func (p *Product) Delete(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), createLimit)
	defer cancel()
	_, err := p.Client.DeleteSandbox(ctx, id, client.Wait(createLimit))
	return err
}

// Remove takes everything down. What it cannot take down stays where it is: the pool may still be mounted.
func (p *Product) Remove() error {
	ctx, cancel := context.WithTimeout(context.Background(), downLimit)
	defer cancel()
	if err := p.run(ctx, "down", "--all", "--driver", p.opts.Driver); err != nil { // also when setup was not finished
		if p.up != nil {
			err = errors.Join(err, p.up.Process.Kill(), p.up.Wait())
		}
		return fmt.Errorf("%s is left: %w", p.Dir, err)
	}
	if p.up != nil {
		_ = p.up.Wait() // down has ended it
	}
	return os.RemoveAll(p.parent)
}
