//go:build realvm

// Package e2e tests the product as it is delivered: the binaries, a data directory set up from a bundle of assets, real
// microVMs. SPACE_TEST_BIN is the directory of the binaries, SPACE_TEST_ASSETS the bundle; test/run.sh makes both.
package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
)

// readyTimeout is long: the first start probes KVM by booting under it.
const readyTimeout = 90 * time.Second

// installation is a data directory of the test's own and the space up that serves it.
type installation struct {
	t      *testing.T
	bin    string
	dir    string
	driver string   // for up and down
	env    []string // beside the test's own
	up     *exec.Cmd
	ended  chan error
	log    *logBuffer
	url    string
	data   string
	client *client.Client
}

func environment(t *testing.T, name string) string {
	t.Helper()
	v := os.Getenv(name)
	if v == "" {
		t.Fatalf("%s is not set; run these tests by test/run.sh", name)
	}
	return v
}

// install sets up a new installation. It is removed with the test, machines included.
func install(t *testing.T) *installation {
	t.Helper()
	return installWith(t, installation{bin: environment(t, "SPACE_TEST_BIN"), driver: "auto"})
}

// installWith is install with the binaries, driver and environment of with.
func installWith(t *testing.T, with installation) *installation {
	t.Helper()
	parent, err := os.MkdirTemp("", "space-e2e-") // t.TempDir is closed to other users, and its path is long
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(parent) })
	if err := os.Chmod(parent, 0o755); err != nil {
		t.Fatal(err)
	}
	i := &with
	i.t, i.dir = t, filepath.Join(parent, "d")
	t.Cleanup(i.remove)
	out, err := i.space(t.Context(), "setup", "--no-install", "--templates", "mini", "--pool-sparse", "--pool-size", "8192",
		"--assets", environment(t, "SPACE_TEST_ASSETS"))
	if err != nil {
		t.Fatalf("setup: %v\n%s", err, out)
	}
	return i
}

// space runs one command of the CLI on the installation and returns what it printed, both streams.
func (i *installation) space(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(i.bin, "space"), append([]string{"--data-dir", i.dir}, args...)...)
	cmd.Env = append(append(os.Environ(), "SPACE_URL="+i.url), i.env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// remove takes everything down and fails the test when that does not work.
func (i *installation) remove() {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if i.t.Failed() && i.log != nil {
		i.t.Logf("log of space up:\n%s", i.log.text())
	}
	if _, err := os.Stat(filepath.Join(i.dir, "installation.json")); err != nil {
		if out, err := i.space(ctx, "down", "--all"); err != nil { // a setup that failed may have mounted its pool
			i.t.Logf("down --all: %v\n%s", err, out)
		}
		return
	}
	if out, err := i.space(ctx, "down", "--all", "--driver", i.driver); err != nil {
		i.t.Errorf("down --all: %v\n%s", err, out)
	}
	if i.up != nil {
		<-i.ended
	}
}

// launch runs space up. The channel gets the line that says that it is ready.
func (i *installation) launch(flags ...string) (ready <-chan string) {
	i.t.Helper()
	i.log = &logBuffer{}
	args := []string{"up", "--data-dir", i.dir, "--listen", "127.0.0.1:0", "--data-listen", "127.0.0.1:0", "--driver", i.driver}
	i.up = exec.Command(filepath.Join(i.bin, "space"), append(args, flags...)...)
	i.up.Env = append(os.Environ(), i.env...)
	stderr, err := i.up.StderrPipe()
	if err != nil {
		i.t.Fatal(err)
	}
	if err := i.up.Start(); err != nil {
		i.t.Fatal(err)
	}
	lines, ended := make(chan string, 1), make(chan error, 1)
	i.ended = ended
	go func(log *logBuffer, up *exec.Cmd) {
		log.read(stderr, lines)
		ended <- up.Wait()
		close(ended)
	}(i.log, i.up)
	return lines
}

// start runs space up and waits until it says that it is ready.
func (i *installation) start(flags ...string) {
	i.t.Helper()
	ready := i.launch(flags...)
	select {
	case line := <-ready:
		i.url, i.data = "http://"+field(line, "listen"), "http://"+field(line, "data_listen")
	case err := <-i.ended:
		i.t.Fatalf("space up ended: %v\n%s", err, i.log.text())
	case <-time.After(readyTimeout):
		i.t.Fatalf("space up is not ready\n%s", i.log.text())
	}
	key, err := os.ReadFile(filepath.Join(i.dir, "admin.key"))
	if err != nil {
		i.t.Fatal(err)
	}
	i.client = client.New(i.url, strings.TrimSpace(string(key)))
}

// field returns the value of key in a line of slog's text form.
func field(line, key string) string {
	for _, f := range strings.Fields(line) {
		if v, ok := strings.CutPrefix(f, key+"="); ok {
			return v
		}
	}
	return ""
}

// logBuffer keeps what space up has logged.
type logBuffer struct {
	mu    sync.Mutex
	lines []string
}

func (b *logBuffer) read(r io.Reader, ready chan<- string) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		b.mu.Lock()
		b.lines = append(b.lines, lines.Text())
		b.mu.Unlock()
		if strings.Contains(lines.Text(), "msg=ready") {
			select {
			case ready <- lines.Text():
			default:
			}
		}
	}
}

func (b *logBuffer) text() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Join(b.lines, "\n")
}

// partPID finds the process of a part by its command line.
func (i *installation) partPID(name string) (int, bool) {
	i.t.Helper()
	want := "space\x00" + name + "\x00--data-dir\x00" + i.dir + "\x00"
	for _, pid := range pids(i.t) {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && strings.HasPrefix(string(data), want) {
			return pid, true
		}
	}
	return 0, false
}

func pids(t *testing.T) []int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var all []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			all = append(all, pid)
		}
	}
	return all
}

// killPart kills a part and waits until another process has taken its place.
func (i *installation) killPart(name string) {
	i.t.Helper()
	old, ok := i.partPID(name)
	if !ok {
		i.t.Fatalf("no process %s", name)
	}
	if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
		i.t.Fatal(err)
	}
	i.eventually(30*time.Second, name+" is started again", func() bool {
		pid, ok := i.partPID(name)
		return ok && pid != old
	})
}

// eventually polls what has no event to wait for.
func (i *installation) eventually(limit time.Duration, what string, ok func() bool) {
	i.t.Helper()
	deadline := time.After(limit)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			i.t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// create makes a sandbox of mini and waits until it is ready.
func (i *installation) create(in apiv1.CreateSandbox) apiv1.Sandbox {
	i.t.Helper()
	if in.Template == "" {
		in.Template = "mini"
	}
	if in.MemoryMiB == nil {
		mib := 256
		in.MemoryMiB = &mib
	}
	res, err := i.client.CreateSandbox(i.t.Context(), in, client.Wait(4*time.Minute))
	if err != nil {
		i.t.Fatalf("create: %v", err)
	}
	if res.Sandbox.State != "running" || res.Sandbox.ReadyAt == nil {
		i.t.Fatalf("created sandbox is %s, ready at %v", res.Sandbox.State, res.Sandbox.ReadyAt)
	}
	return res.Sandbox
}

func (i *installation) delete(ref string) {
	i.t.Helper()
	res, err := i.client.DeleteSandbox(i.t.Context(), ref, client.Wait(time.Minute))
	if err != nil {
		i.t.Fatalf("delete %s: %v", ref, err)
	}
	if res.Operation.State != "succeeded" {
		i.t.Fatalf("delete %s: the operation is %s", ref, res.Operation.State)
	}
}

// exec runs a command to its end.
func (i *installation) exec(ref string, in apiv1.Exec) apiv1.ExecResult {
	i.t.Helper()
	res, err := i.client.Exec(i.t.Context(), ref, in)
	if err != nil {
		i.t.Fatalf("exec %q: %v", in.Argv, err)
	}
	return *res
}

// sh runs a shell line as the default user and returns its standard output; it must succeed.
func (i *installation) sh(ref, line string) string {
	i.t.Helper()
	res := i.exec(ref, apiv1.Exec{Argv: []string{"sh", "-c", line}})
	if res.ExitCode == nil || *res.ExitCode != 0 {
		i.t.Fatalf("%s: exit code %v, stderr %q, error %v", line, res.ExitCode, res.Stderr, res.Error)
	}
	return res.Stdout
}
