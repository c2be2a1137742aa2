package guestos

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
)

// BuildConfig says what Build makes the guest's files from.
type BuildConfig struct {
	// KernelDeb is the package of a distribution's kernel: boot/vmlinuz-* and lib/modules/*.
	KernelDeb io.Reader
	// Agent is the binary that becomes PID 1, and AgentVersion is what it calls itself.
	Agent        []byte
	AgentVersion string
	// Dir is where the files go. It must exist; needs about 200 MB free while building, 70 MB afterwards.
	Dir string
}

// Build writes kernel, initramfs and manifest into c.Dir. The files have their digests in their names and the
// manifest is replaced last, so a Build that was cut off changes nothing, and the next one tidies up.
func Build(ctx context.Context, c BuildConfig) (m Manifest, err error) {
	root, err := os.OpenRoot(c.Dir)
	if err != nil {
		return Manifest{}, fmt.Errorf("guest files: %w", err)
	}
	defer root.Close()
	if err := tidy(root, nil); err != nil {
		return Manifest{}, fmt.Errorf("guest files: %w", err)
	}
	unpacked := temporaryPrefix + "package"
	defer func() { err = errors.Join(err, root.RemoveAll(unpacked)) }()
	kernel, modules, version, err := unpackKernel(ctx, root, unpacked, c.KernelDeb)
	if err != nil {
		return Manifest{}, fmt.Errorf("guest files: %w", err)
	}
	agent := sha256.Sum256(c.Agent)
	m = Manifest{KernelVersion: version, AgentVersion: c.AgentVersion, AgentSHA256: hex.EncodeToString(agent[:])}
	for _, module := range modules {
		m.Modules = append(m.Modules, module.Name)
	}
	var initramfs bytes.Buffer
	if err := writeInitramfs(&initramfs, c.Agent, modules); err != nil {
		return Manifest{}, fmt.Errorf("guest files: %w", err)
	}
	if err := store(root, &m, kernel, initramfs.Bytes()); err != nil {
		return Manifest{}, fmt.Errorf("guest files: %w", err)
	}
	return m, nil
}

func store(root *os.Root, m *Manifest, kernel, initramfs []byte) (err error) {
	if m.Kernel, err = storeFile(root, "vmlinux", "", kernel); err != nil {
		return err
	}
	if m.Initramfs, err = storeFile(root, "initramfs", ".cpio", initramfs); err != nil {
		return err
	}
	if err := writeManifest(root, *m); err != nil {
		return err
	}
	if err := tidy(root, []string{m.Kernel.Name, m.Initramfs.Name}); err != nil {
		return err
	}
	return syncDir(root)
}

// tidy removes what builds that were cut off have left and, with keep, files of builds before this one. A node that
// runs has its files open and goes on using them.
func tidy(root *os.Root, keep []string) error {
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return err
	}
	for _, e := range entries {
		old := strings.HasPrefix(e.Name(), "vmlinux-") || strings.HasPrefix(e.Name(), "initramfs-")
		remove := old && keep != nil && !slices.Contains(keep, e.Name())
		if !remove && !strings.HasPrefix(e.Name(), temporaryPrefix) {
			continue
		}
		if err := root.RemoveAll(e.Name()); err != nil {
			return err
		}
	}
	return nil
}

// unpackKernel takes the kernel and its modules out of the package, by way of the directory named dir.
func unpackKernel(ctx context.Context, root *os.Root, dir string, deb io.Reader) ([]byte, []Module, string, error) {
	if err := root.Mkdir(dir, 0o700); err != nil {
		return nil, nil, "", err
	}
	unpacked, err := root.OpenRoot(dir)
	if err != nil {
		return nil, nil, "", err
	}
	defer unpacked.Close()
	if err := ExtractDeb(ctx, deb, unpacked, kernelPart); err != nil {
		return nil, nil, "", err
	}
	version, err := kernelVersion(unpacked.FS())
	if err != nil {
		return nil, nil, "", err
	}
	vmlinuz, err := unpacked.ReadFile("boot/vmlinuz-" + version)
	if err != nil {
		return nil, nil, "", err
	}
	kernel, err := ExtractKernel(vmlinuz)
	if err != nil {
		return nil, nil, "", err
	}
	files, err := fs.Sub(unpacked.FS(), moduleRoot+version)
	if err != nil {
		return nil, nil, "", err
	}
	tree, err := openModuleTree(files)
	if err != nil {
		return nil, nil, "", err
	}
	modules, err := tree.ordered(wantedModules())
	return kernel, modules, version, err
}

const moduleRoot = "lib/modules/"

// kernelPart picks what is needed of a kernel's package.
func kernelPart(name string) bool {
	if strings.HasPrefix(name, "boot/vmlinuz-") {
		return true
	}
	base := path.Base(name)
	_, isModule := moduleFile(name)
	return strings.HasPrefix(name, moduleRoot) && (isModule || base == "modules.builtin" || base == "modules.dep")
}

// kernelVersion finds the version of the one kernel in the package.
func kernelVersion(files fs.FS) (string, error) {
	kernels, err := fs.Glob(files, "boot/vmlinuz-*")
	if err != nil {
		return "", err
	}
	if len(kernels) != 1 {
		return "", fmt.Errorf("the package has %d kernels, not one (is it a meta package?)", len(kernels))
	}
	return strings.TrimPrefix(kernels[0], "boot/vmlinuz-"), nil
}
