package up

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/space-sandbox/space/internal/failpoint"
	"github.com/space-sandbox/space/internal/part"
)

const (
	firstBackoff = 200 * time.Millisecond
	maxBackoff   = 10 * time.Second
	// stableAfter is how long a part must have run for the next restart to be quick again.
	stableAfter = 5 * time.Second
	// stopGrace is how long a part may take to stop after the lifeline has ended.
	stopGrace = 10 * time.Second
)

// process is one part: started, watched, started again.
type process struct {
	name       string
	executable string
	args       []string
	uid, gid   uint32
	files      []*os.File // become descriptors 3 and up
	logger     *slog.Logger
}

// supervise keeps the part running until ctx is done, then waits for it to stop. A part that says that another start
// cannot help is passed to hopeless; after that it is started again like any other, unless ctx ends.
func (p *process) supervise(ctx context.Context, hopeless func(part string)) {
	backoff := firstBackoff
	for ctx.Err() == nil {
		started := time.Now()
		err := p.run(ctx)
		if ctx.Err() != nil {
			return
		}
		if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == part.ExitHopeless {
			if hopeless(p.name); ctx.Err() != nil {
				return
			}
		}
		if time.Since(started) > stableAfter {
			backoff = firstBackoff
		}
		p.logger.Error("part ended; starting it again", "error", err, "in", backoff)
		select {
		case <-ctx.Done():
		case <-time.After(backoff):
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

// run starts the part and waits for its end. When ctx is done it waits stopGrace, then kills.
func (p *process) run(ctx context.Context) error {
	cmd := exec.Command(p.executable, p.args...) //nolint:noctx // it ends by the lifeline; see below for what does not
	cmd.Args[0] = "space"
	cmd.Env = environment()
	stdout, done, err := writeOnly(os.Stdout)
	if err != nil {
		return err
	}
	defer done()
	stderr, done, err := writeOnly(os.Stderr)
	if err != nil {
		return err
	}
	defer done()
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.ExtraFiles = p.files
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a terminal's Ctrl-C reaches up alone
	if p.uid != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: p.uid, Gid: p.gid}
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	p.logger.Debug("part started", "pid", cmd.Process.Pid)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		if err == nil {
			err = errors.New("it exited with status 0")
		}
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(stopGrace):
		p.logger.Warn("part does not stop; killing it", "pid", cmd.Process.Pid)
		return errors.Join(cmd.Process.Kill(), <-ended)
	}
}

// environment is what parts get of ours: no secrets of whoever started up. In a build without failpoints Variable is "",
// which no variable is named.
func environment() []string {
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}
	for _, name := range []string{"SPACE_ALLOW_FAKE", "SPACE_LOG", "GOCOVERDIR", failpoint.Variable} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}
