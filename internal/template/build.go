package template

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/space-sandbox/space/internal/hostprog"
	"github.com/space-sandbox/space/internal/pool"
	"github.com/space-sandbox/space/internal/sandbox"
)

// Builder makes templates. It needs root, mmdebstrap, mke2fs and unshare.
type Builder struct {
	// WorkDir is an existing private directory (0700, root) on a file system that allows devices and programs. Each
	// build makes one directory in it and removes it; what a cut-off build left is the caller's to remove.
	WorkDir string
	// AptDir is the host's apt configuration: /etc/apt.
	AptDir string
	Logger *slog.Logger
}

// Build makes the template of a recipe in a stage of the pool and returns its manifest; pool.InstallTemplate is the next
// step. The progress function gets short texts about what is being done; it may be nil. When the context ends, the
// programs are killed. Nothing is left outside the stage.
func (b *Builder) Build(ctx context.Context, r Recipe, st *pool.Stage, progress func(string)) (_ pool.Manifest, err error) {
	if progress == nil {
		progress = func(string) {}
	}
	started := time.Now()
	if err := enoughSpace(b.WorkDir, r); err != nil {
		return pool.Manifest{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, r.deadline)
	defer cancel()
	work, err := os.MkdirTemp(b.WorkDir, "build-"+r.Name+"-*")
	if err != nil {
		return pool.Manifest{}, fmt.Errorf("build template %s: %w", r.Name, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	root := filepath.Join(work, "root")
	if err := b.bootstrap(ctx, r, root, progress); err != nil {
		return pool.Manifest{}, buildError(ctx, r, err)
	}
	progress("finishing")
	if err := finishRoot(ctx, r, root); err != nil {
		return pool.Manifest{}, buildError(ctx, r, err)
	}
	packaged := time.Now()
	progress("making the image")
	m, err := b.image(ctx, r, root, st)
	if err != nil {
		return pool.Manifest{}, buildError(ctx, r, err)
	}
	b.Logger.Info("template built", "template", r.Name, "digest", m.Digest, "size_bytes", m.SizeBytes,
		"packages_s", packaged.Sub(started).Seconds(), "image_s", time.Since(packaged).Seconds())
	return m, nil
}

// enoughSpace refuses a build that would end half way: dpkg's own words for it are hard to read.
func enoughSpace(dir string, r Recipe) error {
	free, err := pool.FreeBytes(dir)
	if err != nil {
		return err
	}
	if free >= r.space {
		return nil
	}
	return &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "the disk is too full to build template " + r.Name,
		Cause:  fmt.Sprintf("%d MiB are free at %s, the build needs %d MiB for a while", free/mib, dir, r.space/mib),
		Remedy: "free some space, choose another --data-dir, or take a bundle: --assets DIR"}
}

// bootstrap unpacks the packages into root. The programs get a PID and mount namespace of their own: they end together,
// whatever happens to us, and their mounts with them.
func (b *Builder) bootstrap(ctx context.Context, r Recipe, root string, progress func(string)) error {
	sources, err := hostSources(os.DirFS(b.AptDir))
	if err != nil {
		return err
	}
	args := []string{"--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "--",
		hostprog.Path("mmdebstrap"), "--mode=root", "--format=directory", "--variant=" + r.variant,
		"--include=" + strings.Join(r.packages, ","),
		"--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
		`--aptopt=Apt::Install-Recommends "false"`, `--aptopt=Acquire::Languages "none"`,
		"--dpkgopt=force-unsafe-io", // a build that is cut off is thrown away: nothing needs to be on the disk before the image
		release, root, "-"}
	cmd := exec.CommandContext(ctx, hostprog.Path("unshare"), args...)
	var lines strings.Builder
	for _, s := range sources {
		lines.WriteString(s.line() + "\n")
	}
	cmd.Stdin = strings.NewReader(lines.String())
	cmd.Env = hostprog.Env("LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive", "TMPDIR="+b.WorkDir)
	return runChild(cmd, func(line string) {
		if text, ok := strings.CutPrefix(line, "I: "); ok {
			progress(strings.TrimSuffix(text, "..."))
		}
	})
}

func (b *Builder) image(ctx context.Context, r Recipe, root string, st *pool.Stage) (_ pool.Manifest, err error) {
	f, err := st.CreateRootfs()
	if err != nil {
		return pool.Manifest{}, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := MakeExt4(ctx, root, imageID, r.journal, f); err != nil {
		return pool.Manifest{}, err
	}
	info, err := f.Stat()
	if err != nil {
		return pool.Manifest{}, err
	}
	digest, err := pool.Digest(ctx, f)
	if err != nil {
		return pool.Manifest{}, err
	}
	return pool.Manifest{Digest: digest, Names: []string{r.Name + ":latest"}, SizeBytes: info.Size(),
		MinDiskMiB: int((info.Size() + mib - 1) / mib), Env: r.env, User: userName, Workdir: userHome,
		CreatedAt: time.Now().UTC().Truncate(time.Second)}, nil
}

// buildError tells an end by the caller from a failure, and names what to do about the latter.
func buildError(ctx context.Context, r Recipe, err error) error {
	if errors.Is(context.Cause(ctx), context.Canceled) {
		return fmt.Errorf("build template %s: %w", r.Name, context.Canceled)
	}
	if se, ok := errors.AsType[*sandbox.Error](err); ok {
		return se
	}
	return &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "template " + r.Name + " could not be built", Cause: err.Error(),
		Remedy: "check that the package sources of this host answer (apt-get update) and that the disk has space, then run space setup again",
		Err:    err}
}
