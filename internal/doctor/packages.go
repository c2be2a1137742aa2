package doctor

import (
	"os"

	"github.com/space-sandbox/space/internal/hostprog"
	"github.com/space-sandbox/space/internal/vmm/qemu"
)

// Package is a package of the distribution and a file or program that shows it is there.
type Package struct {
	Name string
	// Program is looked for in the directories of the system; File is an absolute path.
	Program, File string
}

// RuntimePackages are needed to run sandboxes.
func RuntimePackages() []Package {
	return []Package{{Name: "qemu-system-x86", File: qemu.DefaultPath}, {Name: "xfsprogs", Program: "mkfs.xfs"}}
}

// BuildPackages are needed to build templates on this host; not with a bundle of assets.
func BuildPackages() []Package {
	return []Package{{Name: "mmdebstrap", Program: "mmdebstrap"}, {Name: "e2fsprogs", Program: "mke2fs"},
		{Name: "debian-archive-keyring", File: "/usr/share/keyrings/debian-archive-keyring.gpg"}}
}

// MissingPackages returns the names of those packages whose programs are not on this host.
func MissingPackages(want []Package) []string {
	var missing []string
	for _, p := range want {
		if !present(p) {
			missing = append(missing, p.Name)
		}
	}
	return missing
}

func present(p Package) bool {
	if p.File != "" {
		_, err := os.Stat(p.File)
		return err == nil
	}
	_, found := hostprog.Find(p.Program)
	return found
}
