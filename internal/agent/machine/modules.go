package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// moduleDir has the modules, in the order of their names (see package guestos).
const moduleDir = "/modules"

// loadModules loads all modules and removes their files: the memory is the guest's.
func (b *booter) loadModules(ctx context.Context) error {
	paths, err := filepath.Glob(moduleDir + "/*.ko")
	if err != nil {
		return err
	}
	slices.Sort(paths)
	for _, path := range paths {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := loadModule(path); err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(path), err)
		}
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return nil
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	err = unix.FinitModule(int(f.Fd()), "", 0)
	if errors.Is(err, unix.EEXIST) { // part of this kernel
		return nil
	}
	return err
}
