package setup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/datadir"
	"github.com/space-sandbox/space/internal/pool"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/template"
)

// Options are what a caller of setup chooses.
type Options struct {
	// DataDir is absolute.
	DataDir string
	// Install allows apt to install missing packages; else they are named in the error.
	Install bool
	// Templates are names of recipes: mini, base.
	Templates []string
	// AssetsDir, when not empty, is a bundle made by BuildAssets: kernel, initramfs and templates come from there.
	AssetsDir string
	// PoolKind is "" to choose by what the host can do.
	PoolKind pool.Kind
	// PoolBytes is the size of a loop image; 0 for the default.
	PoolBytes int64
	// PoolSparse leaves the loop image without reserved space behind it: for demonstrations and tests.
	PoolSparse bool
}

// Result is what setup found or made.
type Result struct {
	Dir *datadir.Dir
	// NewKey says that the admin key was made by this run.
	NewKey bool
	// Warnings are for people: what works, but not well.
	Warnings []string
}

// run is one setup under way.
type run struct {
	opts   Options
	host   Host
	report Reporter
	logger *slog.Logger

	dir      *datadir.Dir
	root     *os.Root // the data directory
	record   *record
	result   Result
	progress func(string)
}

// step is one part of setup: done says in a few words what was found or made.
type step struct {
	name string
	do   func(*run, context.Context) (done string, err error)
}

func steps() []step {
	return []step{
		{"packages", (*run).packages},
		{"directories", (*run).directories},
		{"users", (*run).users},
		{"uid range", (*run).uidRange},
		{"pool", (*run).pool},
		{"guest", (*run).guest},
		{"templates", (*run).templates},
		{"key", (*run).key},
		{"installation", (*run).installation},
	}
}

// Run sets a data directory up. Errors are *sandbox.Error with a remedy where one is known.
func Run(ctx context.Context, opts Options, host Host, report Reporter, logger *slog.Logger) (_ Result, err error) {
	for _, name := range opts.Templates {
		if _, err := template.RecipeByName(name); err != nil {
			return Result{}, err
		}
	}
	if os.Geteuid() != 0 {
		return Result{}, &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "setup needs root",
			Cause: fmt.Sprintf("it runs as uid %d", os.Geteuid()), Remedy: "run it with sudo"}
	}
	if err := datadir.CheckPath(opts.DataDir); err != nil {
		return Result{}, err
	}
	r := &run{opts: opts, host: host, report: report, logger: logger, dir: &datadir.Dir{Path: opts.DataDir}}
	if err := makeDataDir(opts.DataDir); err != nil {
		return Result{}, err
	}
	if r.root, err = os.OpenRoot(opts.DataDir); err != nil {
		return Result{}, fmt.Errorf("open data directory: %w", err)
	}
	defer r.root.Close()
	lock, err := takeLock(r.root, opts.DataDir)
	if err != nil {
		return Result{}, err
	}
	defer lock.Close()
	if r.record, err = loadRecord(r.root); errors.Is(err, errDamagedRecord) {
		err = r.restoreRecord(err)
	}
	if err != nil {
		return Result{}, err
	}
	for i, s := range steps() {
		if err := r.step(ctx, i, s); err != nil {
			return Result{}, err
		}
	}
	r.result.Dir = r.dir
	return r.result, nil
}

func (r *run) step(ctx context.Context, i int, s step) error {
	if err := ctx.Err(); err != nil {
		return stopped(err)
	}
	r.host.at(s.name)
	r.report.Begin(i, len(steps()), s.name)
	r.progress = r.report.Note
	started := time.Now()
	done, err := s.do(r, ctx)
	r.report.End(s.name, done, time.Since(started), err)
	if err != nil {
		if ctx.Err() != nil {
			return stopped(ctx.Err())
		}
		return stepError(s.name, err)
	}
	return nil
}

// stopped is what a canceled setup says.
func stopped(err error) error {
	return &sandbox.Error{Code: sandbox.CodeCanceled, Message: "setup was stopped", Cause: "it was asked to end",
		Remedy: "run it again: it goes on where it was", Err: err}
}

// stepError gives each failure its remedy.
func stepError(name string, err error) error {
	se, known := errors.AsType[*sandbox.Error](err)
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), known && se.Code == sandbox.CodePoolFull:
		return &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "the disk is full (" + name + ")", Cause: err.Error(),
			Remedy: "free some space or choose another --data-dir, then run setup again", Err: err}
	case known:
		return err
	}
	return &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "setup failed (" + name + ")", Cause: err.Error(),
		Remedy: "space doctor shows what this host lacks; setup may be run again", Err: err}
}

// installation is the last step: from here on the data directory is ready.
func (r *run) installation(context.Context) (string, error) {
	if err := r.record.save(r.root, installationFile, 0o644); err != nil {
		return "", err
	}
	if err := r.root.Remove(recordFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	r.dir.Installation = r.record.Installation
	return r.record.ID, nil
}
