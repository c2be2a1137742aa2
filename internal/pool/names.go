package pool

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
)

// SetNames replaces the names of an installed template in one step; one that is not there is fs.ErrNotExist.
func (p *Pool) SetNames(digest string, names []string) (err error) {
	hexDigest, err := parseDigest(digest)
	if err != nil {
		return err
	}
	dir := path.Join(templatesDir, hexDigest)
	m, err := p.readManifest(dir)
	if err != nil {
		return err
	}
	m.Names = names
	if err := m.Validate(); err != nil {
		return fmt.Errorf("name template: %w", err)
	}
	data, err := m.encode()
	if err != nil {
		return err
	}
	draft := path.Join(dir, "manifest-"+strings.ToLower(rand.Text()))
	defer func() {
		if removeErr := p.root.Remove(draft); err != nil && !errors.Is(removeErr, fs.ErrNotExist) {
			err = errors.Join(err, removeErr)
		}
	}()
	if err := p.writeDurably(draft, data); err != nil {
		return fullError(fmt.Errorf("name template: %w", err))
	}
	if err := p.root.Rename(draft, path.Join(dir, manifestName)); err != nil {
		return fmt.Errorf("name template: %w", err)
	}
	return p.syncDir(dir)
}

func (p *Pool) writeDurably(name string, data []byte) (err error) {
	f, err := p.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.Write(data); err != nil {
		return err
	}
	return f.Sync()
}
