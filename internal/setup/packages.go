package setup

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/space-sandbox/space/internal/doctor"
	"github.com/space-sandbox/space/internal/hostprog"
	"github.com/space-sandbox/space/internal/sandbox"
)

// packages makes sure that the programs are there.
func (r *run) packages(ctx context.Context) (string, error) {
	want := doctor.RuntimePackages()
	if r.opts.AssetsDir == "" {
		want = append(want, doctor.BuildPackages()...)
	}
	missing := r.host.MissingPackages(want)
	if len(missing) == 0 {
		return "all there", nil
	}
	list := strings.Join(missing, " ")
	if !r.opts.Install {
		return "", &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "packages are missing", Cause: list,
			Remedy: "run: apt-get install " + list + "   (or run setup without --no-install)"}
	}
	if err := r.host.InstallPackages(ctx, missing, r.progress); err != nil {
		return "", &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "packages could not be installed", Cause: err.Error(),
			Remedy: "install them by hand: apt-get install " + list, Err: err}
	}
	if still := r.host.MissingPackages(want); len(still) > 0 {
		return "", &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "packages are installed, but their programs are not found",
			Cause: strings.Join(still, " "), Remedy: "they are looked for in /usr/sbin, /usr/bin, /sbin and /bin"}
	}
	return "installed " + list, nil
}

// installPackages uses apt-get, with new package lists when the first attempt does not find everything.
func installPackages(ctx context.Context, names []string, note func(string)) error {
	install := append([]string{"install", "-y", "--no-install-recommends"}, names...)
	if haveLists() {
		if err := aptGet(ctx, note, install...); err == nil || ctx.Err() != nil {
			return err
		}
	}
	if err := aptGet(ctx, note, "update"); err != nil {
		return err
	}
	err := aptGet(ctx, note, install...)
	if err == nil || ctx.Err() != nil {
		return err
	}
	// A dpkg that was cut off, ours or another, has to be finished first.
	if fixErr := systemCommand(ctx, note, "", "dpkg", "--configure", "-a"); fixErr != nil {
		return errors.Join(err, fixErr)
	}
	return aptGet(ctx, note, install...)
}

func haveLists() bool {
	for _, pattern := range []string{"/var/lib/apt/lists/*_Packages*"} {
		if found, err := filepath.Glob(pattern); err == nil && len(found) > 0 {
			return true
		}
	}
	return false
}

func aptGet(ctx context.Context, note func(string), args ...string) error {
	return systemCommand(ctx, note, "", "apt-get", append([]string{"-q", "-o", "DPkg::Lock::Timeout=300"}, args...)...)
}

// systemCommand runs a program of the package manager. It is asked to end, not killed, when the context ends, and it may
// outlive us: half an installation helps nobody.
func systemCommand(ctx context.Context, note func(string), dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, hostprog.Path(name), args...)
	cmd.Dir = dir
	cmd.Env = hostprog.Env("DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = time.Minute
	out := &lastLines{note: note}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, args[len(args)-1], err, out.text())
	}
	return nil
}

// lastLines keeps the end of a program's output and shows its lines as progress.
type lastLines struct {
	note func(string)
	tail string
}

func (l *lastLines) Write(p []byte) (int, error) {
	l.tail += string(p)
	if i := strings.LastIndexByte(strings.TrimRight(l.tail, "\n"), '\n'); l.note != nil {
		l.note(strings.TrimSpace(l.tail[i+1:]))
	}
	if len(l.tail) > 2000 {
		l.tail = l.tail[len(l.tail)-2000:]
	}
	return len(p), nil
}

func (l *lastLines) text() string {
	return strings.ReplaceAll(strings.ToValidUTF8(strings.TrimSpace(l.tail), "?"), "\n", "; ")
}
