package setup

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/space-sandbox/space/internal/datadir"
	"github.com/space-sandbox/space/internal/sandbox"
)

const (
	installationFile = "installation.json"
	// recordFile holds what an unfinished setup has decided so far.
	recordFile = "setup.json"
	lockFile   = "setup.lock"
)

var errDamagedRecord = errors.New("damaged record")

// record is the installation as far as it is decided.
type record struct{ datadir.Installation }

// loadRecord reads what a finished or an unfinished setup has decided; an empty record when there is nothing.
func loadRecord(root *os.Root) (*record, error) {
	for _, name := range []string{installationFile, recordFile} {
		data, err := root.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		r := &record{}
		err = json.Unmarshal(data, &r.Installation)
		if err == nil && name == installationFile {
			err = r.Check()
		}
		if err != nil {
			return nil, &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "the file " + name + " is damaged", Cause: err.Error(),
				Remedy: "restore it, or move the data directory away and set up a new one", Err: errors.Join(errDamagedRecord, err)}
		}
		return r, nil
	}
	return &record{}, nil
}

func (r *record) save(root *os.Root, name string, mode fs.FileMode) error {
	data, err := json.MarshalIndent(r.Installation, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return writeFile(root, name, append(data, '\n'), mode, owner{})
}

// owner of a file or directory; the zero value is root.
type owner struct{ uid, gid uint32 }

// writeFile replaces a file in one durable step. The directory may belong to a user who is not trusted: nothing in it is
// followed out of root, and the new file is ours until it is complete.
func writeFile(root *os.Root, name string, data []byte, mode fs.FileMode, o owner) (err error) {
	partial := path.Join(path.Dir(name), "."+path.Base(name)+"."+strings.ToLower(rand.Text()[:8]))
	f, err := root.OpenFile(partial, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if err != nil {
			err = errors.Join(fmt.Errorf("write %s: %w", name, err), root.Remove(partial))
		}
	}()
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := errors.Join(f.Chown(int(o.uid), int(o.gid)), f.Chmod(mode), f.Sync()); err != nil {
		return err
	}
	if err := root.Rename(partial, name); err != nil {
		return err
	}
	return syncDir(root, path.Dir(name))
}

func syncDir(root *os.Root, name string) error {
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
