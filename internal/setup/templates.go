package setup

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/space-sandbox/space/internal/pool"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/template"
)

// templates builds or copies those of the wanted templates that the pool has not.
func (r *run) templates(ctx context.Context) (string, error) {
	p, err := r.openPool()
	if err != nil {
		return "", err
	}
	defer p.Close()
	var done []string
	for _, name := range r.opts.Templates {
		installed, err := p.ListTemplates()
		if err != nil {
			return "", err
		}
		if _, ok := findTemplate(installed, name); ok {
			done = append(done, name+" is there")
			continue
		}
		m, err := r.makeTemplate(ctx, p, name)
		if err != nil {
			return "", err
		}
		done = append(done, fmt.Sprintf("%s (%d MiB)", name, m.SizeBytes>>20))
	}
	return strings.Join(done, ", "), nil
}

func findTemplate(list []pool.Manifest, name string) (pool.Manifest, bool) {
	i := slices.IndexFunc(list, func(m pool.Manifest) bool { return slices.Contains(m.Names, name+":latest") })
	if i < 0 {
		return pool.Manifest{}, false
	}
	return list[i], true
}

func (r *run) makeTemplate(ctx context.Context, p *pool.Pool, name string) (pool.Manifest, error) {
	note := func(text string) { r.progress(name + ": " + text) }
	if r.opts.AssetsDir != "" {
		return r.copyTemplate(ctx, p, name, note)
	}
	return r.host.buildTemplate(ctx, p, name, filepath.Join(r.dir.Path, "work"), note)
}

// buildTemplate builds a template and installs it in the pool.
func (h Host) buildTemplate(ctx context.Context, p *pool.Pool, name, work string, note func(string)) (pool.Manifest, error) {
	recipe, err := template.RecipeByName(name)
	if err != nil {
		return pool.Manifest{}, err
	}
	st, err := p.NewStage(stageOwner)
	if err != nil {
		return pool.Manifest{}, err
	}
	h.at("template " + name + ": staged")
	m, err := h.BuildTemplate(ctx, recipe, work, st, note)
	if err != nil {
		return pool.Manifest{}, errors.Join(err, st.Remove())
	}
	h.at("template " + name + ": built")
	return m, p.InstallTemplate(ctx, st, m)
}

func (r *run) copyTemplate(ctx context.Context, p *pool.Pool, name string, note func(string)) (_ pool.Manifest, err error) {
	b, err := openBundle(r.opts.AssetsDir)
	if err != nil {
		return pool.Manifest{}, err
	}
	from, err := b.openPool()
	if err != nil {
		return pool.Manifest{}, err
	}
	defer from.Close()
	list, err := from.ListTemplates()
	if err != nil {
		return pool.Manifest{}, err
	}
	m, ok := findTemplate(list, name)
	if !ok {
		return m, b.error("it has no template "+name, "make it again: space assets build "+r.opts.AssetsDir+" --templates "+name)
	}
	src, err := from.OpenTemplate(m.Digest)
	if err != nil {
		return m, err
	}
	defer src.Close()
	st, err := p.NewStage(stageOwner)
	if err != nil {
		return m, err
	}
	note("copying")
	if err := fillStage(ctx, p, st, src); err != nil {
		return m, errors.Join(err, st.Remove())
	}
	r.host.at("template " + name + ": copied")
	if err := p.InstallTemplate(ctx, st, m); err != nil {
		if se, ok := errors.AsType[*sandbox.Error](err); ok && se.Code == sandbox.CodePoolFull {
			return m, err
		}
		return m, b.error(err.Error(), "the bundle is damaged: make it again")
	}
	return m, nil
}

func fillStage(ctx context.Context, p *pool.Pool, st *pool.Stage, src *pool.Template) (err error) {
	f, err := st.CreateRootfs()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return p.Clone(ctx, src.Rootfs, f)
}
