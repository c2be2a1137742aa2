package pool

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/sandbox"
)

// Template is an installed template, open for reading.
type Template struct {
	Manifest Manifest
	Rootfs   *os.File
}

// Close closes the root file system image.
func (t *Template) Close() error { return t.Rootfs.Close() }

// OpenTemplate opens the template with this digest; template_not_found when it is not installed. Sums were checked when
// it was installed, not here.
func (p *Pool) OpenTemplate(digest string) (*Template, error) {
	hexDigest, err := parseDigest(digest)
	if err != nil {
		return nil, err
	}
	dir := path.Join(templatesDir, hexDigest)
	m, err := p.readManifest(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &sandbox.Error{Code: sandbox.CodeTemplateNotFound, Message: "no template has this digest",
			Cause: digest, Remedy: "list the templates, or run space setup", Err: err}
	}
	if err != nil {
		return nil, err
	}
	f, err := p.root.OpenFile(path.Join(dir, rootfsName), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("open template %s: %w", digest, err)
	}
	return &Template{Manifest: m, Rootfs: f}, nil
}

// ListTemplates returns all installed templates, newest first. A name that was released twice belongs to the newest
// only. A template whose manifest is damaged is left out.
func (p *Pool) ListTemplates() ([]Manifest, error) {
	list, err := p.entries(templatesDir)
	if err != nil {
		return nil, err
	}
	var out []Manifest
	for _, e := range list {
		m, err := p.readManifest(path.Join(templatesDir, e.Name()))
		if err == nil && m.Digest == digestPrefix+e.Name() {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b Manifest) int {
		return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(a.Digest, b.Digest))
	})
	taken := map[string]bool{}
	for i := range out {
		out[i].Names = slices.DeleteFunc(out[i].Names, func(n string) bool { return taken[n] })
		for _, n := range out[i].Names {
			taken[n] = true
		}
	}
	return out, nil
}

func (p *Pool) readManifest(dir string) (Manifest, error) {
	f, err := p.root.OpenFile(path.Join(dir, manifestName), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return Manifest{}, fmt.Errorf("read template: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxManifest+1))
	if err != nil {
		return Manifest{}, fmt.Errorf("read template: %w", err)
	}
	return ParseManifest(data)
}

// InstallTemplate makes a staged template visible in one step. The stage must hold Stage.Rootfs; m.Digest and
// m.SizeBytes are checked against it. The stage is gone afterwards, in success and in failure. Installing a digest that
// is there already replaces its manifest only.
func (p *Pool) InstallTemplate(ctx context.Context, st *Stage, m Manifest) (err error) {
	defer func() { err = errors.Join(err, st.Remove()) }()
	hexDigest, err := parseDigest(m.Digest)
	if err != nil {
		return err
	}
	if err := m.Validate(); err != nil {
		return fmt.Errorf("install template: %w", err)
	}
	if err := st.verify(ctx, m); err != nil {
		return err
	}
	if err := st.writeManifest(m); err != nil {
		return fullError(fmt.Errorf("install template: %w", err))
	}
	final := path.Join(templatesDir, hexDigest)
	if _, err := p.root.Lstat(path.Join(final, manifestName)); err == nil {
		err = p.root.Rename(path.Join(st.name, manifestName), path.Join(final, manifestName))
		if err != nil {
			return fmt.Errorf("install template: %w", err)
		}
		return p.syncDir(final)
	}
	// What lies there without a manifest is the rest of a removal that was cut off.
	if err := p.root.RemoveAll(final); err != nil {
		return fmt.Errorf("install template: %w", err)
	}
	if err := p.root.Rename(st.name, final); err != nil {
		return fmt.Errorf("install template: %w", err)
	}
	return p.syncDir(templatesDir)
}

// RemoveTemplate removes a template; disks made from it are complete by themselves and stay. Removing what does not
// exist succeeds.
func (p *Pool) RemoveTemplate(digest string) error {
	hexDigest, err := parseDigest(digest)
	if err != nil {
		return err
	}
	dir := path.Join(templatesDir, hexDigest)
	// The manifest first: without it the rest is no template any more, whenever we are cut off.
	if err := p.root.Remove(path.Join(dir, manifestName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove template: %w", err)
	}
	if err := p.root.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove template: %w", err)
	}
	return nil
}

// Digest returns the sha256 digest of a file's content, read from its start.
func Digest(ctx context.Context, f *os.File) (string, error) {
	h := sha256.New()
	buf := make([]byte, copyChunk)
	for off := int64(0); ; {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		n, err := f.ReadAt(buf, off)
		h.Write(buf[:n])
		off += int64(n)
		if errors.Is(err, io.EOF) {
			return digestPrefix + hex.EncodeToString(h.Sum(nil)), nil
		}
		if err != nil {
			return "", fmt.Errorf("digest of %s: %w", f.Name(), err)
		}
	}
}
