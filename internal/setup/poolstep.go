package setup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/space-sandbox/space/internal/pool"
	"github.com/space-sandbox/space/internal/sandbox"
)

// stageOwner is whom setup's stages in the pool belong to.
const stageOwner = "setup"

// reserveBytes stays free beside the pool for what setup builds and for the store.
const reserveBytes = 256 << 20

// pool decides on the kind of pool, makes and mounts it.
func (r *run) pool(ctx context.Context) (string, error) {
	kind, err := r.poolKind(ctx)
	if err != nil {
		return "", err
	}
	if kind == pool.KindLoopXFS {
		if err := r.loopPool(ctx); err != nil {
			return "", err
		}
	}
	if r.record.PoolKind != string(kind) {
		r.record.PoolKind = string(kind)
		if err := r.saveRecord(); err != nil {
			return "", err
		}
	}
	p, err := r.openPool()
	if err != nil {
		return "", err
	}
	defer p.Close()
	if err := p.SweepStaging(stageOwner); err != nil {
		return "", err
	}
	if kind == pool.KindCopy {
		r.result.Warnings = append(r.result.Warnings,
			"the pool makes plain copies: each sandbox takes the full space of its template, and creating one is slow")
	}
	usage, err := p.Usage(ctx)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s, %d MiB free", kind, usage.FreeBytes>>20), nil
}

func (r *run) openPool() (*pool.Pool, error) {
	r.dir.Installation = r.record.Installation
	return pool.OpenDir(r.dir)
}

// poolKind keeps what was decided before; else it takes the best kind that works here.
func (r *run) poolKind(ctx context.Context) (pool.Kind, error) {
	if r.record.PoolKind != "" {
		kind, err := pool.ParseKind(r.record.PoolKind)
		if err == nil && r.opts.PoolKind != "" && r.opts.PoolKind != kind {
			return "", &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "the kind of a pool cannot be changed",
				Cause: fmt.Sprintf("it is %s, %s was asked for", kind, r.opts.PoolKind), Remedy: "set up another data directory"}
		}
		return kind, err
	}
	if _, err := r.root.Lstat("pool.img"); err == nil {
		return pool.KindLoopXFS, nil // made by a setup that was cut off
	}
	if err := pool.CheckOrphan(r.dir.PoolDir()); err != nil {
		return "", err
	}
	if r.opts.PoolKind != "" && r.opts.PoolKind != pool.KindReflink {
		return r.opts.PoolKind, nil
	}
	native, err := pool.Probe(r.dir.PoolDir())
	if err != nil {
		return "", err
	}
	if native == pool.KindReflink {
		return native, nil
	}
	if r.opts.PoolKind == pool.KindReflink {
		return "", &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "the file system of the data directory has no reflinks",
			Cause: r.dir.Path, Remedy: "leave the choice to setup, or choose a directory on XFS or btrfs"}
	}
	if _, err := r.root.Lstat("pool/templates"); err == nil {
		return pool.KindCopy, nil // in use already, but the record of it is lost
	}
	if reason := pool.LoopReason(ctx); reason != "" {
		r.result.Warnings = append(r.result.Warnings, "no loop pool: "+reason)
		return pool.KindCopy, nil
	}
	return pool.KindLoopXFS, nil
}

func (r *run) loopPool(ctx context.Context) error {
	image := r.dir.PoolImage()
	if _, err := os.Lstat(image); errors.Is(err, fs.ErrNotExist) {
		free, err := pool.FreeBytes(r.dir.Path)
		if err != nil {
			return err
		}
		size := r.opts.PoolBytes
		if size == 0 {
			size = pool.DefaultImageBytes(free)
		}
		if err := poolFits(size, free, r.opts.PoolSparse); err != nil {
			return err
		}
		r.progress(fmt.Sprintf("making an image of %d MiB", size>>20))
		if err := pool.MakeImage(ctx, image, size, r.opts.PoolSparse); err != nil {
			return err
		}
	}
	r.host.at("pool: image made")
	if err := pool.Mount(ctx, image, r.dir.PoolDir()); err != nil {
		return err
	}
	r.host.at("pool: mounted")
	return ensureDir(r.root, "pool", 0o700, owner{}) // the root of the new file system
}

func poolFits(size int64, free uint64, sparse bool) error {
	need := uint64(size) + reserveBytes
	if sparse {
		need = pool.MinImageBytes
	}
	if size >= pool.MinImageBytes && free >= need {
		return nil
	}
	return &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "there is not enough space for the pool",
		Cause:  fmt.Sprintf("%d MiB are free, a pool of %d MiB needs %d MiB", free>>20, size>>20, max(need, pool.MinImageBytes)>>20),
		Remedy: "free some space, choose another --data-dir, or a smaller pool with --pool-size"}
}
