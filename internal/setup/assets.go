package setup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/space-sandbox/space/internal/pool"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/template"
)

// A bundle is a directory with all that setup would otherwise fetch or build:
//
//	bundle.json   written last: without it the bundle is not complete
//	guest/        as in the data directory
//	pool/         a pool with the templates
const (
	bundleFile   = "bundle.json"
	bundleFormat = 1
)

type bundle struct{ dir string }

// bundleInfo is the content of bundle.json.
type bundleInfo struct {
	Format int `json:"format"`
}

func (b bundle) guestDir() string { return filepath.Join(b.dir, "guest") }

func (b bundle) openPool() (*pool.Pool, error) {
	return pool.Open(pool.Config{Dir: filepath.Join(b.dir, "pool"), Kind: pool.KindCopy})
}

func (b bundle) error(cause, remedy string) error {
	return &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "the bundle of assets cannot be used",
		Cause: b.dir + ": " + cause, Remedy: remedy}
}

func openBundle(dir string) (bundle, error) {
	b := bundle{dir: dir}
	data, err := os.ReadFile(filepath.Join(dir, bundleFile))
	if err != nil {
		return b, b.error(err.Error(), "make one with: space assets build "+dir)
	}
	var info bundleInfo
	if err := json.Unmarshal(data, &info); err != nil || info.Format != bundleFormat {
		return b, b.error("bundle.json is damaged or of another version", "make it again with: space assets build "+dir)
	}
	return b, nil
}

// BuildAssets makes a bundle for setup on other machines, or completes one: templates that are there stay, kernel and
// initramfs are renewed when they hold another agent. Needs root.
func BuildAssets(ctx context.Context, dir string, templates []string, host Host, report Reporter) error {
	for _, name := range templates {
		if _, err := template.RecipeByName(name); err != nil {
			return err
		}
	}
	if os.Geteuid() != 0 {
		return &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "building assets needs root", Remedy: "run it with sudo"}
	}
	b := bundle{dir: dir}
	root, lock, err := prepareBundle(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	defer lock.Close()
	parts := []struct {
		name string
		do   func() (string, error)
	}{
		{"guest", func() (string, error) { return b.buildGuest(ctx, host, report.Note) }},
		{"templates", func() (string, error) { return b.buildTemplates(ctx, host, templates, report.Note) }},
	}
	for i, part := range parts {
		report.Begin(i, len(parts), part.name)
		started := time.Now()
		done, err := part.do()
		report.End(part.name, done, time.Since(started), err)
		if ctx.Err() != nil {
			return stopped(ctx.Err())
		}
		if err != nil {
			return stepError(part.name, err)
		}
	}
	data, err := json.Marshal(bundleInfo{Format: bundleFormat})
	if err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	return writeFile(root, bundleFile, append(data, '\n'), 0o644, owner{})
}

func prepareBundle(dir string) (*os.Root, dirLock, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil { // no secret in it: what is below is 0700
		return nil, dirLock{}, bundle{dir}.error(err.Error(), "choose another directory")
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, dirLock{}, bundle{dir}.error(err.Error(), "choose another directory")
	}
	lock, err := takeLock(root, dir)
	if err != nil {
		return nil, dirLock{}, errors.Join(err, root.Close())
	}
	fail := func(err error) (*os.Root, dirLock, error) {
		return nil, dirLock{}, errors.Join(err, lock.Close(), root.Close())
	}
	for _, name := range []string{"guest", "pool", "work"} {
		if err := root.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return fail(err)
		}
	}
	r := &run{root: root}
	if err := r.sweepWork(); err != nil {
		return fail(err)
	}
	return root, lock, nil
}

func (b bundle) buildGuest(ctx context.Context, host Host, note func(string)) (string, error) {
	agent, err := host.Agent()
	if err != nil {
		return "", err
	}
	if m, ok := currentGuest(b.guestDir(), agent); ok {
		return "kernel " + m.KernelVersion + " is there", nil
	}
	m, err := host.BuildGuest(ctx, agent, b.guestDir(), filepath.Join(b.dir, "work"), note)
	return "kernel " + m.KernelVersion, err
}

func (b bundle) buildTemplates(ctx context.Context, host Host, names []string, note func(string)) (string, error) {
	p, err := b.openPool()
	if err != nil {
		return "", err
	}
	defer p.Close()
	if err := p.SweepStaging(stageOwner); err != nil {
		return "", err
	}
	done := ""
	for _, name := range names {
		list, err := p.ListTemplates()
		if err != nil {
			return "", err
		}
		m, ok := findTemplate(list, name)
		if !ok {
			if m, err = host.buildTemplate(ctx, p, name, filepath.Join(b.dir, "work"), note); err != nil {
				return "", err
			}
		}
		done += fmt.Sprintf("%s (%d MiB) ", name, m.SizeBytes>>20)
	}
	return done, nil
}
