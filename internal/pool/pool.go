// Package pool keeps the big files of an installation: root disks of sandboxes and templates. Files are cloned copy on
// write where the file system can (FICLONE) and copied sparsely where it cannot; each file is complete by itself, so
// deleting one is an unlink and never touches another.
//
// Layout below Config.Dir, all root 0700/0600:
//
//	sandboxes/<id>/disk.img
//	templates/<hex of the digest>/{rootfs.img,manifest.json}
//	staging/<owner>-<random>/       what is being made; swept by its owner only
//
// Everything is opened through os.Root: no name leads out of the pool.
package pool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/sandbox"
)

// Kind says how a pool makes copies.
type Kind string

// The kinds of pool.
const (
	KindReflink Kind = "reflink"  // the data directory's own file system shares extents
	KindLoopXFS Kind = "loop-xfs" // an XFS image on a direct-io loop device
	KindCopy    Kind = "copy"     // plain copies: slow, takes the full space for each disk
)

// ParseKind accepts the text of a Kind.
func ParseKind(s string) (Kind, error) {
	switch k := Kind(s); k {
	case KindReflink, KindLoopXFS, KindCopy:
		return k, nil
	}
	return "", fmt.Errorf("%q is not a kind of pool", s)
}

// Config says where a pool is.
type Config struct {
	// Dir is the pool's directory; for loop-xfs the mount point, already mounted.
	Dir string
	// ImageFile is the file behind a loop-xfs pool, "" for the other kinds.
	ImageFile string
	Kind      Kind
}

// Pool is an open pool. Safe for concurrent use, also by several processes.
type Pool struct {
	cfg  Config
	root *os.Root
}

const (
	sandboxesDir = "sandboxes"
	templatesDir = "templates"
	stagingDir   = "staging"
	diskName     = "disk.img"
	rootfsName   = "rootfs.img"
	manifestName = "manifest.json"
)

// Open opens the pool and makes its directories when they are missing. Opening a loop-xfs pool that is not mounted is a
// host_setup error: files must never land below the mount point.
func Open(cfg Config) (*Pool, error) {
	if _, err := ParseKind(string(cfg.Kind)); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("open pool: %w", err)
	}
	p := &Pool{cfg: cfg, root: root}
	if err := p.init(); err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return p, nil
}

func (p *Pool) init() error {
	if p.cfg.Kind == KindLoopXFS {
		mounted, err := mountedFrom(p.cfg.Dir, p.cfg.ImageFile)
		if err != nil {
			return err
		}
		if !mounted {
			if _, err := os.Lstat(p.cfg.ImageFile); errors.Is(err, fs.ErrNotExist) {
				return missingImage(p.cfg.ImageFile, err)
			}
			return &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "the pool is not mounted",
				Cause: p.cfg.ImageFile + " is not mounted on " + p.cfg.Dir, Remedy: "space up mounts it; or run space setup again"}
		}
	}
	for _, name := range []string{sandboxesDir, templatesDir, stagingDir} {
		if err := p.root.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make pool directory: %w", err)
		}
	}
	return nil
}

// Close releases the pool's descriptor. Files opened from it stay usable.
func (p *Pool) Close() error { return p.root.Close() }

// Kind says how this pool makes copies.
func (p *Pool) Kind() Kind { return p.cfg.Kind }

// entries lists the names in a directory of the pool.
func (p *Pool) entries(dir string) ([]fs.DirEntry, error) {
	f, err := p.root.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("list pool: %w", err)
	}
	defer f.Close()
	list, err := f.ReadDir(-1)
	if err != nil {
		return nil, fmt.Errorf("list pool: %w", err)
	}
	return list, nil
}

// syncDir makes renames in dir durable.
func (p *Pool) syncDir(dir string) error {
	f, err := p.root.Open(dir)
	if err != nil {
		return fmt.Errorf("sync pool directory: %w", err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return fmt.Errorf("sync pool directory: %w", err)
	}
	return nil
}

// fullError gives the lack of space the code that callers know; other errors pass unchanged.
func fullError(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return &sandbox.Error{Code: sandbox.CodePoolFull, Message: "the host's pool is full",
			Cause: err.Error(), Remedy: "delete sandboxes or templates, or give the pool more space", Err: err}
	}
	return err
}
