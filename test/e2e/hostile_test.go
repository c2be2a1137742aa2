//go:build realvm

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
)

// Bounds of what a hostile guest may cost.
const (
	hostileLimit = 60 * time.Second // a call on the hostile sandbox itself
	calmLimit    = 14 * time.Second // a call on another one; far above what a busy machine needs, below control's timeout for calls
	hostileGone  = 30 * time.Second // its delete
	atOnce       = 3                // hostile sandboxes; more only wait for each other's boots
)

// TestHostileGuests: root does its worst in some sandboxes at once. Calls on them end in time, another sandbox notices
// nothing, the parts stay well, and what was hostile is deleted without a trace.
func TestHostileGuests(t *testing.T) {
	t.Parallel()
	i := install(t)
	i.start()
	saboteur := buildSaboteur(t)
	i.create(apiv1.CreateSandbox{Name: "calm"})
	i.sh("calm", "true")
	before, load := i.possessions(), i.load()
	calm := i.keepCalm("calm")
	var guests errgroup.Group
	guests.SetLimit(atOnce)
	for name, damage := range map[string]func(*hostile){
		"shell": replaceShell, "disk": fillDisk, "files": tamper, "ice": freezeAgent, "trace": traceAgent,
		"memory": takeMemory, "forks": forkBomb, "liar": lieForAgent,
	} {
		guests.Go(func() error { // side by side, however many tests may run in parallel
			t.Run(name, func(t *testing.T) {
				h := i.besiege(t, name, saboteur)
				defer h.gone()
				damage(h)
			})
			return nil
		})
	}
	if err := guests.Wait(); err != nil {
		t.Error(err)
	}

	calm()
	if err := i.client.Ready(t.Context()); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	now := i.load()
	defer func() { t.Logf("goroutines and descriptors before: %v, after: %v", load, now) }()
	i.eventually(30*time.Second, "goroutines and descriptors are back to what they were", func() bool {
		now = i.load()
		for what, n := range load {
			if now[what] > n+20 {
				return false
			}
		}
		return true
	})
	i.eventually(10*time.Second, "nothing is left", func() bool {
		return fmt.Sprint(before) == fmt.Sprint(i.possessions())
	})
	i.delete("calm")
}

// buildSaboteur builds what the hostile root runs.
func buildSaboteur(t *testing.T) []byte {
	t.Helper()
	program := filepath.Join(t.TempDir(), "saboteur")
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags", "-s -w", "-o", program, "./saboteur")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	data, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// load is what the parts hold: goroutines and descriptors, by part.
func (i *installation) load() map[string]float64 {
	i.t.Helper()
	text, err := i.client.Metrics(i.t.Context())
	if err != nil {
		i.t.Fatalf("metrics: %v", err)
	}
	out := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if strings.HasPrefix(name, "go_goroutines{") || strings.HasPrefix(name, "process_open_fds{") {
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				i.t.Fatalf("metric %q: %v", line, err)
			}
			out[name] = n
		}
	}
	if len(out) != 6 {
		i.t.Fatalf("goroutines and descriptors of three parts: %v", out)
	}
	return out
}

// keepCalm uses a sandbox and asks after the parts without end; the returned function ends that and judges.
func (i *installation) keepCalm(ref string) (judge func()) {
	ctx, cancel := context.WithCancel(i.t.Context())
	var worst time.Duration
	var faults []string
	rounds := 0
	done := make(chan struct{})
	step := func(what string, call func(context.Context) error) {
		limited, stop := context.WithTimeout(ctx, hostileLimit)
		defer stop()
		began := time.Now()
		err := call(limited)
		took := time.Since(began)
		worst = max(worst, took)
		if ctx.Err() == nil && (err != nil || took > calmLimit) {
			faults = append(faults, fmt.Sprintf("%s: %v after %v", what, err, took))
		}
	}
	go func() {
		defer close(done)
		for ; ctx.Err() == nil; rounds++ {
			step("exec", func(ctx context.Context) error {
				res, err := i.client.Exec(ctx, ref, apiv1.Exec{Argv: []string{"echo", "calm"}})
				if err == nil && res.Stdout != "calm\n" {
					err = fmt.Errorf("it is %s and says %q", res.State, res.Stdout)
				}
				return err
			})
			step("write", func(ctx context.Context) error {
				_, err := i.client.WriteFile(ctx, ref, "note", strings.NewReader("calm"), client.FileOptions{})
				return err
			})
			step("stat", func(ctx context.Context) error {
				_, err := i.client.StatFile(ctx, ref, "note", client.StatOptions{})
				return err
			})
			step("readyz", i.client.Ready)
		}
	}()
	return func() {
		i.t.Helper()
		cancel()
		<-done
		i.t.Logf("%d rounds in the other sandbox, the slowest call took %v", rounds, worst)
		if rounds < 10 || len(faults) > 0 {
			i.t.Errorf("the other sandbox, %d rounds: %s", rounds, strings.Join(faults, "; "))
		}
	}
}

// hostile is a sandbox whose root does damage.
type hostile struct {
	t   *testing.T
	i   *installation
	ref string
}

func (i *installation) besiege(t *testing.T, name string, saboteur []byte) *hostile {
	t.Helper()
	h := &hostile{t: t, i: i, ref: "hostile-" + name}
	mib, disk := 160, 256
	_, err := i.client.CreateSandbox(t.Context(), apiv1.CreateSandbox{Template: "mini", Name: h.ref, MemoryMiB: &mib, DiskMiB: &disk}, client.Wait(4*time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	_, err = i.client.WriteFile(t.Context(), h.ref, "/saboteur", bytes.NewReader(saboteur), client.FileOptions{User: "root", Mode: 0o755, Size: int64(len(saboteur))})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// root runs a command as root to its end, within the bound; the error is the API's.
func (h *hostile) root(argv ...string) (*apiv1.ExecResult, error) {
	h.t.Helper()
	var res *apiv1.ExecResult
	err := h.bounded(strings.Join(argv, " "), func(ctx context.Context) (err error) {
		res, err = h.i.client.Exec(ctx, h.ref, apiv1.Exec{Argv: argv, User: "0", TimeoutSeconds: 50})
		return err
	})
	return res, err
}

// sh runs a line of the shell as root; it must succeed.
func (h *hostile) sh(line string) string {
	h.t.Helper()
	res, err := h.root("/bin/dash", "-c", line)
	if err != nil {
		h.t.Fatalf("%s: %v", line, err)
	}
	if res.ExitCode == nil || *res.ExitCode != 0 {
		h.t.Fatalf("%s: it is %s, stderr %q, error %v", line, res.State, res.Stderr, res.Error)
	}
	return res.Stdout
}

// start runs a command as root and does not wait for its end.
func (h *hostile) start(argv ...string) string {
	h.t.Helper()
	cmd, err := h.i.client.CreateCommand(h.t.Context(), h.ref, apiv1.CreateCommand{Argv: argv, User: "0", Start: true})
	if err != nil && client.Code(err) == "" {
		h.t.Errorf("start %q: %v", argv, err)
	}
	if err != nil {
		return ""
	}
	return cmd.ID
}

// stderr is what a command has said.
func (h *hostile) stderr(id string) string {
	h.t.Helper()
	token, err := h.i.client.AttachToken(h.t.Context(), id)
	if err != nil {
		return err.Error()
	}
	out, err := h.i.client.Output(h.t.Context(), id, token, client.OutputOptions{Stream: "stderr"})
	if err != nil {
		return err.Error()
	}
	defer out.Close()
	text, err := io.ReadAll(out)
	return fmt.Sprintf("%s %v", text, err)
}

// bounded makes a call that must end, well or with an error of the API, within hostileLimit.
func (h *hostile) bounded(what string, call func(context.Context) error) error {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), 2*hostileLimit)
	defer cancel()
	began := time.Now()
	err := call(ctx)
	if took := time.Since(began); took > hostileLimit {
		h.t.Errorf("%s took %v", what, took)
	}
	if code := client.Code(err); err != nil && (code == "" || code == "internal") {
		h.t.Errorf("%s: %v", what, err)
	}
	return err
}

// probe makes a call of each kind at once; each ends in time. It reports which ones succeeded.
func (h *hostile) probe() (ok map[string]bool) {
	h.t.Helper()
	c := h.i.client
	calls := map[string]func(context.Context) error{
		"exec": func(ctx context.Context) error {
			made, err := c.CreateCommand(ctx, h.ref, apiv1.CreateCommand{Argv: []string{"/usr/bin/true"}, User: "0", TimeoutSeconds: 5, Start: true})
			if err != nil {
				return err
			}
			_, err = c.Command(ctx, made.ID, client.Wait(10*time.Second)) // a guest without air may not run it in time
			return err
		},
		"command": func(ctx context.Context) error {
			_, err := c.CreateCommand(ctx, h.ref, apiv1.CreateCommand{Argv: []string{"/usr/bin/true"}, User: "0"})
			return err
		},
		"read": func(ctx context.Context) error {
			f, err := c.ReadFile(ctx, h.ref, "/saboteur", client.FileOptions{User: "0"})
			if err != nil {
				return err
			}
			defer f.Close()
			_, _ = io.Copy(io.Discard, f) // a body that is cut off is an answer, too
			return nil
		},
		"write": func(ctx context.Context) error {
			_, err := c.WriteFile(ctx, h.ref, "/probe", strings.NewReader("x"), client.FileOptions{User: "0"})
			return err
		},
		"stat": func(ctx context.Context) error {
			_, err := c.StatFile(ctx, h.ref, "/saboteur", client.StatOptions{User: "0"})
			return err
		},
		"list": func(ctx context.Context) error {
			_, err := c.ListFiles(ctx, h.ref, "/bin", client.ListOptions{User: "0"})
			return err
		},
		"mkdir": func(ctx context.Context) error {
			_, err := c.MakeDirectory(ctx, h.ref, "0", apiv1.MakeDirectory{Path: "/probes"})
			return err
		},
		"move": func(ctx context.Context) error {
			_, err := c.MoveFile(ctx, h.ref, "0", apiv1.MoveFile{From: "/nothing", To: "/else"})
			return err
		},
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	ok = map[string]bool{}
	for what, call := range calls {
		wg.Go(func() {
			began := time.Now()
			err := h.bounded(what, call)
			h.t.Logf("%s: %v after %v", what, err, time.Since(began).Round(time.Millisecond))
			mu.Lock()
			defer mu.Unlock()
			ok[what] = err == nil
		})
	}
	wg.Wait()
	return ok
}

// works wants the sandbox to be usable after all.
func (h *hostile) works() {
	h.t.Helper()
	ok := h.probe()
	for _, what := range []string{"exec", "command", "read", "stat", "list"} {
		if !ok[what] {
			h.t.Errorf("%s does not work any more", what)
		}
	}
}

// eventually polls what has no event to wait for.
func (h *hostile) eventually(what string, ok func() bool) {
	h.t.Helper()
	deadline := time.After(hostileLimit)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			h.t.Fatalf("not within %v: %s", hostileLimit, what)
		}
	}
}

// ends waits for the machine to be recorded as failed for the reason.
func (h *hostile) ends(reason string) {
	h.t.Helper()
	h.eventually("the machine has ended", func() bool {
		got, err := h.i.client.Sandbox(h.t.Context(), h.ref)
		if err != nil {
			h.t.Fatal(err)
		}
		if got.State == "failed" && (got.Reason == nil || *got.Reason != reason) {
			h.t.Errorf("it failed because of %v, want %s", got.Reason, reason)
		}
		return got.State == "failed"
	})
	if _, err := h.root("true"); client.Code(err) != "invalid_state" {
		h.t.Errorf("exec in a machine that has ended: %v", err)
	}
}

// gone deletes the sandbox, promptly.
func (h *hostile) gone() {
	h.t.Helper()
	began := time.Now()
	res, err := h.i.client.DeleteSandbox(h.t.Context(), h.ref, client.Wait(2*time.Minute))
	if err != nil || res.Operation.State != "succeeded" {
		h.t.Errorf("delete: %+v, %v", res, err)
	}
	if took := time.Since(began); took > hostileGone {
		h.t.Errorf("its delete took %v", took)
	}
}
