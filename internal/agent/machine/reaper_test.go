package machine

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/agent"
)

// reaperVariable makes the test binary play PID 1: a Reaper must be the only one in its process that waits.
const reaperVariable = "SPACE_TEST_REAPER"

func TestMain(m *testing.M) {
	if os.Getenv(reaperVariable) != "" {
		if err := playInit(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestReaperTellsChildrenFromOrphans(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), reaperVariable+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// playInit adopts orphans as PID 1 does, starts programs that end in every way, some of which leave orphans, and
// checks what it is told.
func playInit() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	r := newReaper(slog.New(slog.DiscardHandler))
	go r.Run()
	const rounds = 30
	var wg sync.WaitGroup
	problems := make(chan error, 10*rounds)
	for i := range rounds {
		for script, want := range map[string]agent.Exit{
			fmt.Sprintf("exit %d", i):          {Code: i},
			"kill -TERM $$":                    {Code: -1, Signal: unix.SIGTERM},
			"(exec sleep 0.01) & (exit 9) & :": {},
		} {
			wg.Add(1)
			go func() {
				defer wg.Done()
				problems <- expectExit(r, script, want)
			}()
		}
		if _, err := r.Start("/does/not/exist", nil, &syscall.ProcAttr{}, nil); err == nil {
			return fmt.Errorf("a missing program was started")
		}
	}
	wg.Wait()
	close(problems)
	for err := range problems {
		if err != nil {
			return err
		}
	}
	return waitChildless(10 * time.Second)
}

func expectExit(r *Reaper, script string, want agent.Exit) error {
	exit := make(chan agent.Exit, 1)
	attr := &syscall.ProcAttr{Files: []uintptr{0, 1, 2}, Env: os.Environ()}
	if _, err := r.Start("/bin/sh", []string{"sh", "-c", script}, attr, func(e agent.Exit) { exit <- e }); err != nil {
		return err
	}
	if got := <-exit; got != want {
		return fmt.Errorf("%s: %+v, want %+v", script, got, want)
	}
	return nil
}

// waitChildless returns when this process has no children left, alive or dead.
func waitChildless(limit time.Duration) error {
	for deadline := time.Now().Add(limit); ; {
		children, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/children", os.Getpid()))
		if err != nil {
			return err
		}
		if strings.TrimSpace(string(children)) == "" {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("children remain: %s", children)
		}
	}
}
