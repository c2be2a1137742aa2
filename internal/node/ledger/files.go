package ledger

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// maxEntries bounds what is read of one directory. More is an error: nobody would look through it.
const maxEntries = 1 << 20

// directory is one that this package removes entries from.
type directory struct{ path string }

// fileScan lists the files of the installation that come and go with machines and imports. Templates are content, and
// stages of other owners (setup) are those owners' business.
func fileScan(at places) func(context.Context) ([]Object, error) {
	return func(context.Context) ([]Object, error) {
		var all []Object
		for _, scan := range []func(places) ([]Object, error){scanPool, scanSandboxes, scanStaging, scanRecords, scanRun, scanVM} {
			found, err := scan(at)
			if err != nil {
				return nil, err
			}
			all = append(all, found...)
		}
		return all, nil
	}
}

// list reads a directory; one that does not exist is empty.
func list(dir string) ([]fs.DirEntry, error) {
	f, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list files: %w", err)
	}
	defer f.Close()
	entries, err := f.ReadDir(maxEntries)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // it was removed since
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("list files: %w", err)
	}
	if len(entries) == maxEntries {
		return nil, fmt.Errorf("list files: %s has too many", dir)
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, nil
}

func scanPool(at places) ([]Object, error) {
	entries, err := list(at.pool)
	if err != nil {
		return nil, err
	}
	var all []Object
	for _, e := range entries {
		if !slices.Contains([]string{"sandboxes", "templates", "staging", "lost+found"}, e.Name()) {
			all = append(all, Object{Kind: File, Name: filepath.Join(at.pool, e.Name()), Keep: oddName})
		}
	}
	return all, nil
}

func scanSandboxes(at places) ([]Object, error) { return scanOwned(at.sandboxes) }

// scanOwned lists a directory with one directory for each sandbox, and what is in those.
func scanOwned(dir string) ([]Object, error) {
	entries, err := list(dir)
	if err != nil {
		return nil, err
	}
	var all []Object
	for _, e := range entries {
		o := Object{Kind: File, Name: filepath.Join(dir, e.Name())}
		o.Owner, o.Keep = owner(e.Name())
		all = append(all, o)
		if o.Owner == "" || !e.IsDir() {
			continue
		}
		inside, err := list(o.Name)
		if err != nil {
			return nil, err
		}
		for _, f := range inside {
			all = append(all, Object{Kind: kindOf(f), Name: filepath.Join(o.Name, f.Name()), Owner: o.Owner,
				dir: &directory{o.Name}, path: f.Name()})
		}
	}
	return all, nil
}

func kindOf(e fs.DirEntry) Kind {
	if e.Type()&fs.ModeSocket != 0 {
		return Socket
	}
	return File
}

func scanStaging(at places) ([]Object, error) {
	entries, err := list(at.staging)
	if err != nil {
		return nil, err
	}
	var all []Object
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), OwnerImport+"-") {
			all = append(all, Object{Kind: File, Name: filepath.Join(at.staging, e.Name()), Owner: OwnerImport})
		}
	}
	return all, nil
}

// scanRecords lists the state files of machines, and ones that were not written to their end.
func scanRecords(at places) ([]Object, error) {
	entries, err := list(at.machines)
	if err != nil {
		return nil, err
	}
	var all []Object
	for _, e := range entries {
		o := Object{Kind: File, Name: filepath.Join(at.machines, e.Name()), dir: &directory{at.machines}, path: e.Name()}
		name, ok := strings.CutSuffix(strings.TrimSuffix(e.Name(), ".tmp"), ".json")
		o.Owner, o.Keep = owner(name)
		if !ok {
			o.Owner, o.Keep = "", oddName
		}
		all = append(all, o)
	}
	return all, nil
}

// scanRun lists the run directory: it is on tmpfs, and everything in it is of the installation's processes.
func scanRun(at places) ([]Object, error) {
	entries, err := list(at.run)
	if err != nil {
		return nil, err
	}
	var all []Object
	for _, e := range entries {
		o := Object{Kind: kindOf(e), Name: filepath.Join(at.run, e.Name()), dir: &directory{at.run}, path: e.Name()}
		if e.IsDir() && o.Name != at.vm {
			o.Keep = oddName
		}
		all = append(all, o)
	}
	return all, nil
}

func scanVM(at places) ([]Object, error) { return scanOwned(at.vm) }

// removeFile removes one file or socket, or a directory that is empty: never a tree, in which something could be mounted.
func removeFile(_ context.Context, o Object) error {
	root, err := os.OpenRoot(o.dir.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", o.Name, err)
	}
	defer root.Close()
	if err := root.Remove(o.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", o.Name, err)
	}
	return nil
}
