package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
)

// product is an installation of its own with a running space up.
type product struct {
	space, parent, dir       string
	up                       *exec.Cmd
	log                      tail
	client                   *client.Client
	isolation, version, pool string
}

// How long things may take before the benchmark gives up.
const (
	readyLimit  = 2 * time.Minute
	createLimit = 2 * time.Minute
	downLimit   = 3 * time.Minute
)

// install sets up and starts; on error nothing is left.
func install(ctx context.Context, o options) (_ *product, err error) {
	space, err := filepath.Abs(o.space)
	if err != nil {
		return nil, err
	}
	parent, err := os.MkdirTemp("", "space-bench-")
	if err != nil {
		return nil, err
	}
	p := &product{space: space, parent: parent, dir: filepath.Join(parent, "d")}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.remove())
		}
	}()
	if err := os.Chmod(parent, 0o755); err != nil { // the parts are other users
		return nil, err
	}
	if err := p.run(ctx, "setup", "--no-install", "--templates", "mini", "--pool-sparse", "--pool-size", "8192", "--assets", o.assets); err != nil {
		return nil, err
	}
	if err := p.start(ctx); err != nil {
		return nil, err
	}
	return p, p.describe(ctx)
}

// run runs one command of the CLI; its output is shown only when it fails.
func (p *product) run(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, p.space, append(args, "--data-dir", p.dir)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("space %s: %w\n%s", args[0], err, out)
	}
	return nil
}

// start runs space up until it says that it is ready.
func (p *product) start(ctx context.Context) error {
	p.up = exec.Command(p.space, "up", "--data-dir", p.dir, "--listen", "127.0.0.1:0", "--data-listen", "127.0.0.1:0", "--driver", "qemu")
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
		key, err := os.ReadFile(filepath.Join(p.dir, "admin.key"))
		if err != nil {
			return err
		}
		p.client = client.New("http://"+field(line, "listen"), strings.TrimSpace(string(key)))
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
func (p *product) describe(ctx context.Context) error {
	node, err := p.client.Node(ctx)
	if err != nil {
		return err
	}
	p.pool = node.Pool.Kind
	for _, d := range node.Drivers {
		if d.Name == "qemu" && d.Available {
			p.isolation, p.version = d.Isolation, d.Version
			return nil
		}
	}
	return errors.New("the driver qemu does not work here")
}

// accel is the accelerator that the driver uses.
func (p *product) accel() string {
	if p.isolation == "microvm/kvm" {
		return "kvm"
	}
	return "tcg"
}

// create makes a sandbox and deletes it; it returns milliseconds by step of the operation and as the caller saw it.
func (p *product) create(ctx context.Context, o options) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, createLimit)
	defer cancel()
	begin := time.Now()
	made, err := p.client.CreateSandbox(ctx, apiv1.CreateSandbox{Template: "mini", MemoryMiB: &o.memory, DiskMiB: &o.disk}, client.Wait(createLimit))
	took := time.Since(begin)
	if err != nil {
		return nil, err
	}
	defer func() {
		_, err := p.client.DeleteSandbox(context.WithoutCancel(ctx), made.Sandbox.ID, client.Wait(createLimit))
		if err != nil {
			fmt.Fprintln(os.Stderr, "boot: delete:", err) // remove finds what is left
		}
	}()
	if made.Sandbox.State != "running" {
		return nil, fmt.Errorf("the sandbox is %s: %+v", made.Sandbox.State, made.Operation.Error)
	}
	steps := map[string]float64{"total_ms": took.Seconds() * 1e3}
	for _, s := range made.Operation.Steps {
		if s.MS != nil {
			steps["step_"+s.Name+"_ms"] = *s.MS
		}
	}
	return steps, nil
}

// remove takes everything down. What it cannot take down stays where it is: the pool may still be mounted.
func (p *product) remove() error {
	ctx, cancel := context.WithTimeout(context.Background(), downLimit)
	defer cancel()
	if err := p.run(ctx, "down", "--all"); err != nil { // also when setup was not finished
		if p.up != nil {
			err = errors.Join(err, p.up.Process.Kill(), p.up.Wait())
		}
		return fmt.Errorf("%s is left: %w", p.dir, err)
	}
	if p.up != nil {
		_ = p.up.Wait() // down has ended it
	}
	return os.RemoveAll(p.parent)
}

// guest names the files that the installation boots.
type guest struct{ kernel, initramfs string }

func guestFiles(dir string) (guest, error) {
	data, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	if err != nil {
		return guest{}, err
	}
	var m struct{ Kernel, Initramfs struct{ Name string } }
	if err := json.Unmarshal(data, &m); err != nil {
		return guest{}, fmt.Errorf("manifest of the guest: %w", err)
	}
	return guest{kernel: filepath.Join(dir, m.Kernel.Name), initramfs: filepath.Join(dir, m.Initramfs.Name)}, nil
}

// templateDisk finds the root disk of a template on the pool.
func templateDisk(dir, digest string) (string, error) {
	path := filepath.Join(dir, strings.TrimPrefix(digest, "sha256:"), "rootfs.img")
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("disk of the template: %w", err)
	}
	return path, nil
}
