package guestos

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"strings"
)

// moduleInfo is what a module says about itself in its section .modinfo.
type moduleInfo struct {
	Name    string
	Depends []string
}

// readModuleInfo reads the .modinfo of a module (.ko, not compressed).
func readModuleInfo(ko []byte) (moduleInfo, error) {
	f, err := elf.NewFile(bytes.NewReader(ko))
	if err != nil {
		return moduleInfo{}, fmt.Errorf("not an ELF file: %w", err)
	}
	section := f.Section(".modinfo")
	if section == nil {
		return moduleInfo{}, errors.New("no .modinfo section")
	}
	text, err := bounded(section.Open(), 1<<20)
	if err != nil {
		return moduleInfo{}, fmt.Errorf("section .modinfo: %w", err)
	}
	var info moduleInfo
	for line := range strings.SplitSeq(string(text), "\x00") {
		key, value, _ := strings.Cut(line, "=")
		switch key {
		case "name":
			info.Name = moduleName(value)
		case "depends":
			info.Depends = splitNames(value)
		}
	}
	return info, nil
}

func splitNames(list string) []string {
	var names []string
	for name := range strings.SplitSeq(list, ",") {
		if name != "" {
			names = append(names, moduleName(name))
		}
	}
	return names
}

// moduleName is how a module is called inside the kernel: a file virtio-rng.ko holds the module virtio_rng.
func moduleName(s string) string { return strings.ReplaceAll(s, "-", "_") }

// unpackModule decompresses the content of a .ko, .ko.xz, .ko.zst or .ko.gz file.
func unpackModule(r io.Reader) ([]byte, error) {
	plain, err := decompressor(r, func(head []byte) bool { return startsWith(head, magicELF) })
	if err != nil {
		return nil, err
	}
	defer plain.Close()
	return bounded(plain, maxModule)
}
