package guestos

import (
	"errors"
	"fmt"
	"io"

	"github.com/space-sandbox/space/internal/guestos/newc"
)

// ModuleDir is the directory of the initramfs with the modules to load, in the order of their names.
const ModuleDir = "modules"

// maxModules is what two digits before a module's name can order.
const maxModules = 100

// Major and minor number of /dev/console.
const (
	consoleMajor = 5
	consoleMinor = 1
)

// writeInitramfs writes what the kernel unpacks as its first root: the agent as /init, its modules, the directories
// it mounts on, and the console, which must be there before anything is mounted.
func writeInitramfs(w io.Writer, agent []byte, modules []Module) error {
	if len(modules) > maxModules {
		return fmt.Errorf("initramfs: %d modules are more than %d", len(modules), maxModules)
	}
	archive := newc.NewWriter(w)
	errs := []error{
		archive.Dir("dev", 0o755),
		archive.CharDevice("dev/console", 0o600, consoleMajor, consoleMinor),
		archive.Dir("proc", 0o755),
		archive.Dir("sys", 0o755),
		archive.Dir("newroot", 0o755),
		archive.Dir(ModuleDir, 0o700),
	}
	for i, m := range modules {
		errs = append(errs, archive.File(fmt.Sprintf("%s/%02d-%s.ko", ModuleDir, i, m.Name), 0o600, m.Data))
	}
	errs = append(errs, archive.File("init", 0o755, agent), archive.Close())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("initramfs: %w", err)
	}
	return nil
}
