package guestos

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// wantedModules is what a guest cannot do without: its disk, its network, a source of entropy, and the sockets'
// diagnosis by which connections of a restored machine are found. Their dependencies come by themselves.
func wantedModules() []string {
	return []string{"virtio_mmio", "virtio_blk", "virtio_net", "virtio_rng", "inet_diag", "tcp_diag"}
}

// Module is one kernel module in the order of loading.
type Module struct {
	Name string
	Data []byte // ELF, not compressed
}

// moduleTree is lib/modules/VERSION of a kernel package.
type moduleTree struct {
	files   fs.FS
	paths   map[string]string   // module name → path in files
	builtin map[string]bool     // modules that are part of the kernel
	depends map[string][]string // from modules.dep; nil without one
}

func openModuleTree(files fs.FS) (*moduleTree, error) {
	t := &moduleTree{files: files, paths: map[string]string{}, builtin: map[string]bool{}}
	err := fs.WalkDir(files, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		if name, ok := moduleFile(p); ok {
			t.paths[name] = p
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("modules: %w", err)
	}
	if err := t.readList("modules.builtin", func(line string) {
		if name, ok := moduleFile(line); ok {
			t.builtin[name] = true
		}
	}); err != nil {
		return nil, err
	}
	if err := t.readList("modules.dep", t.addDependencies); err != nil {
		return nil, err
	}
	return t, nil
}

// moduleFile says whether p is a module's file, and the module's name.
func moduleFile(p string) (string, bool) {
	base := path.Base(p)
	stem, kind, ok := strings.Cut(base, ".ko")
	if !ok || stem == "" || !slices.Contains([]string{"", ".xz", ".zst", ".gz"}, kind) {
		return "", false
	}
	return moduleName(stem), true
}

// readList calls line for each line of an index file; there may be none.
func (t *moduleTree) readList(name string, line func(string)) error {
	f, err := t.files.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("modules: %w", err)
	}
	defer f.Close()
	scanner := bufio.NewScanner(io.LimitReader(f, 16<<20))
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		line(scanner.Text())
	}
	if err := scanner.Err(); err != nil {
		return fmt.Errorf("modules: %s: %w", name, err)
	}
	return nil
}

// addDependencies reads one line of modules.dep: "kernel/a.ko: kernel/b.ko kernel/c.ko".
func (t *moduleTree) addDependencies(line string) {
	file, list, ok := strings.Cut(line, ":")
	name, isModule := moduleFile(file)
	if !ok || !isModule {
		return
	}
	if t.depends == nil {
		t.depends = map[string][]string{}
	}
	t.depends[name] = nil
	for _, p := range strings.Fields(list) {
		if dependency, ok := moduleFile(p); ok {
			t.depends[name] = append(t.depends[name], dependency)
		}
	}
}

// ordered returns the wanted modules and all they depend on, each after its dependencies. Modules that are built into
// the kernel need no loading and are left out.
func (t *moduleTree) ordered(wanted []string) ([]Module, error) {
	o := orderer{tree: t, state: map[string]visit{}}
	for _, name := range wanted {
		if err := o.visit(name); err != nil {
			return nil, fmt.Errorf("module %s: %w", name, err)
		}
	}
	return o.modules, nil
}

type visit int

const (
	entered visit = iota + 1
	done
)

type orderer struct {
	tree    *moduleTree
	state   map[string]visit
	modules []Module
}

func (o *orderer) visit(name string) error {
	switch {
	case o.state[name] == done || o.tree.builtin[name]:
		return nil
	case o.state[name] == entered:
		return fmt.Errorf("%s depends on itself", name)
	}
	o.state[name] = entered
	data, depends, err := o.tree.load(name)
	if err != nil {
		return err
	}
	for _, dependency := range depends {
		if err := o.visit(dependency); err != nil {
			return err
		}
	}
	o.state[name] = done
	o.modules = append(o.modules, Module{Name: name, Data: data})
	return nil
}

// load reads a module and finds its dependencies: modules.dep says them; a package has none before depmod ran on a
// machine that installed it, so then the module itself is asked.
func (t *moduleTree) load(name string) ([]byte, []string, error) {
	p, ok := t.paths[name]
	if !ok {
		return nil, nil, fmt.Errorf("%s is neither in the kernel nor among its modules", name)
	}
	f, err := t.files.Open(p)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	data, err := unpackModule(f)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", p, err)
	}
	data = withoutSignature(data)
	if depends, ok := t.depends[name]; ok {
		return data, depends, nil
	}
	info, err := readModuleInfo(data)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", p, err)
	}
	return data, info.Depends, nil
}

// signatureMarker ends a module that its distribution has signed.
const signatureMarker = "~Module signature appended~\n"

// signatureTrailer is the size of struct module_signature, which lies before the marker and ends with the size of the
// signature in big endian.
const signatureTrailer = 12

// withoutSignature cuts a module's signature off. The kernel would check it at each boot, which takes longer than all
// else that loading does; but the modules come from the same package as the kernel itself, and the initramfs has a
// digest. The kernel marks itself as tainted by unsigned modules, which changes nothing.
func withoutSignature(ko []byte) []byte {
	rest, signed := bytes.CutSuffix(ko, []byte(signatureMarker))
	if !signed || len(rest) < signatureTrailer {
		return ko
	}
	size := uint64(binary.BigEndian.Uint32(rest[len(rest)-4:]))
	rest = rest[:len(rest)-signatureTrailer]
	if size > uint64(len(rest)) {
		return ko
	}
	return rest[:uint64(len(rest))-size]
}
