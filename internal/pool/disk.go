package pool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/sandbox"
)

const mib = 1 << 20

// CreateDisk makes the disk of a sandbox: a clone of the template's root file system, grown to sizeMiB (0: the
// template's minimum). The guest grows the file system in it. The returned file is open for reading and writing and is
// the caller's to close. A disk that exists already is an error that wraps fs.ErrExist; on any other error nothing is
// left. Not fsynced: after a crash of the host the sandbox has failed anyway.
func (p *Pool) CreateDisk(ctx context.Context, id sandbox.ID, digest string, sizeMiB int) (*os.File, error) {
	tmpl, err := p.OpenTemplate(digest)
	if err != nil {
		return nil, err
	}
	defer tmpl.Close()
	size := int64(sizeMiB) * mib
	if sizeMiB == 0 {
		size = int64(tmpl.Manifest.MinDiskMiB) * mib
	}
	if size < tmpl.Manifest.SizeBytes || sizeMiB > sandbox.MaxDiskMiB {
		return nil, diskSizeError(sizeMiB, tmpl.Manifest.MinDiskMiB)
	}
	dir := path.Join(sandboxesDir, string(id))
	made := true
	if err := p.root.Mkdir(dir, 0o700); err != nil {
		if !errors.Is(err, fs.ErrExist) {
			return nil, fullError(fmt.Errorf("make sandbox directory: %w", err))
		}
		made = false
	}
	disk, err := p.makeDisk(ctx, dir, tmpl.Rootfs, size)
	if err != nil && made {
		err = errors.Join(err, p.root.RemoveAll(dir))
	}
	if err != nil {
		return nil, fullError(fmt.Errorf("create disk of %s: %w", id, err))
	}
	return disk, nil
}

// makeDisk clones under another name first, so that disk.img is always complete.
func (p *Pool) makeDisk(ctx context.Context, dir string, src *os.File, size int64) (_ *os.File, err error) {
	final, partial := path.Join(dir, diskName), path.Join(dir, diskName+".new")
	if _, err := p.root.Lstat(final); err == nil {
		return nil, fs.ErrExist
	}
	if err := p.root.Remove(partial); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	disk, err := p.root.OpenFile(partial, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, disk.Close())
			if rmErr := p.root.Remove(partial); !errors.Is(rmErr, fs.ErrNotExist) {
				err = errors.Join(err, rmErr)
			}
		}
	}()
	if err := p.Clone(ctx, src, disk); err != nil {
		return nil, err
	}
	if err := disk.Truncate(size); err != nil {
		return nil, err
	}
	return disk, p.root.Rename(partial, final)
}

// OpenDisk opens a sandbox's disk for reading and writing; fs.ErrNotExist when it has none.
func (p *Pool) OpenDisk(id sandbox.ID) (*os.File, error) {
	f, err := p.root.OpenFile(path.Join(sandboxesDir, string(id), diskName), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("open disk of %s: %w", id, err)
	}
	return f, nil
}

// RemoveSandbox removes all files of a sandbox. Removing what does not exist succeeds; a full pool does not hinder it.
func (p *Pool) RemoveSandbox(id sandbox.ID) error {
	if _, err := sandbox.ParseID(string(id)); err != nil {
		return err
	}
	if err := p.root.RemoveAll(path.Join(sandboxesDir, string(id))); err != nil {
		return fmt.Errorf("remove files of %s: %w", id, err)
	}
	return nil
}

// ListSandboxes returns the ids of all sandboxes that have files here.
func (p *Pool) ListSandboxes() ([]sandbox.ID, error) {
	list, err := p.entries(sandboxesDir)
	if err != nil {
		return nil, err
	}
	ids := make([]sandbox.ID, 0, len(list))
	for _, e := range list {
		if id, err := sandbox.ParseID(e.Name()); err == nil {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

func diskSizeError(sizeMiB, minMiB int) error {
	return &sandbox.Error{Code: sandbox.CodeInvalidArgument, Message: "the disk size does not fit the template",
		Cause:  fmt.Sprintf("disk_mib is %d, the template needs at least %d and the limit is %d", sizeMiB, minMiB, sandbox.MaxDiskMiB),
		Remedy: "choose a disk_mib in that range",
		Fields: []sandbox.FieldError{{Field: "disk_mib", Message: fmt.Sprintf("must be %d to %d", minMiB, sandbox.MaxDiskMiB)}}}
}
