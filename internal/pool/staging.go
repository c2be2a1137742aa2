package pool

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
)

// Stage is a private directory in the pool where a template is made before InstallTemplate.
type Stage struct {
	pool *Pool
	name string
}

var ownerName = regexp.MustCompile(`^[a-z]{1,16}$`)

// NewStage makes an empty stage. The owner names who may sweep it: each owner makes sure by a lock of its own that
// nobody else of that name is at work when it sweeps.
func (p *Pool) NewStage(owner string) (*Stage, error) {
	if !ownerName.MatchString(owner) {
		return nil, fmt.Errorf("stage: %q is not an owner", owner)
	}
	st := &Stage{pool: p, name: path.Join(stagingDir, owner+"-"+strings.ToLower(rand.Text()))}
	if err := p.root.Mkdir(st.name, 0o700); err != nil {
		return nil, fullError(fmt.Errorf("stage: %w", err))
	}
	return st, nil
}

// SweepStaging removes what an earlier run of this owner left when it was cut off.
func (p *Pool) SweepStaging(owner string) error {
	if !ownerName.MatchString(owner) {
		return fmt.Errorf("sweep staging: %q is not an owner", owner)
	}
	list, err := p.entries(stagingDir)
	if err != nil {
		return err
	}
	for _, e := range list {
		if strings.HasPrefix(e.Name(), owner+"-") {
			err = errors.Join(err, p.root.RemoveAll(path.Join(stagingDir, e.Name())))
		}
	}
	return err
}

// CreateRootfs makes the empty root file system image of the stage, 0600, for reading and writing.
func (s *Stage) CreateRootfs() (*os.File, error) {
	f, err := s.pool.root.OpenFile(path.Join(s.name, rootfsName), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fullError(fmt.Errorf("stage: %w", err))
	}
	return f, nil
}

// Remove removes the stage; after InstallTemplate it does nothing.
func (s *Stage) Remove() error {
	if err := s.pool.root.RemoveAll(s.name); err != nil {
		return fmt.Errorf("remove stage: %w", err)
	}
	return nil
}

func (s *Stage) verify(ctx context.Context, m Manifest) error {
	f, err := s.pool.root.Open(path.Join(s.name, rootfsName))
	if err != nil {
		return fmt.Errorf("install template: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("install template: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() != m.SizeBytes {
		return fmt.Errorf("install template: the image has %d bytes, its manifest says %d", info.Size(), m.SizeBytes)
	}
	digest, err := Digest(ctx, f)
	if err != nil {
		return err
	}
	if digest != m.Digest {
		return fmt.Errorf("install template: the image is %s, its manifest says %s", digest, m.Digest)
	}
	if err := f.Sync(); err != nil {
		return fullError(fmt.Errorf("install template: %w", err))
	}
	return nil
}

func (s *Stage) writeManifest(m Manifest) (err error) {
	data, err := m.encode()
	if err != nil {
		return err
	}
	name := path.Join(s.name, manifestName)
	f, err := s.pool.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := f.Close(); !errors.Is(closeErr, fs.ErrClosed) {
			err = errors.Join(err, closeErr)
		}
	}()
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return s.pool.syncDir(s.name)
}

// CreateArchive makes an empty file of the stage for what a template is to be made of, 0600, for reading and writing.
func (s *Stage) CreateArchive() (*os.File, error) {
	f, err := s.pool.root.OpenFile(path.Join(s.name, "archive"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fullError(fmt.Errorf("stage: %w", err))
	}
	return f, nil
}

// MakeTree makes an empty directory of the stage, 0700, that belongs to uid and gid, and opens it.
func (s *Stage) MakeTree(uid, gid uint32) (*os.File, error) {
	name := path.Join(s.name, "tree")
	if err := s.pool.root.Mkdir(name, 0o700); err != nil {
		return nil, fullError(fmt.Errorf("stage: %w", err))
	}
	f, err := s.pool.root.Open(name)
	if err != nil {
		return nil, fmt.Errorf("stage: %w", err)
	}
	if err := f.Chown(int(uid), int(gid)); err != nil {
		return nil, errors.Join(fmt.Errorf("stage: %w", err), f.Close())
	}
	return f, nil
}
