package guestos

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
)

// manifestFile names the one file that says which others belong together.
const manifestFile = "manifest.json"

// maxManifest bounds that file, in bytes.
const maxManifest = 64 << 10

// Manifest describes the kernel and the initramfs of an installation.
type Manifest struct {
	KernelVersion string   `json:"kernel_version"`
	AgentVersion  string   `json:"agent_version"`
	AgentSHA256   string   `json:"agent_sha256"` // of the agent's binary: setup renews the files when it changes
	Modules       []string `json:"modules"`      // in the order of loading
	Kernel        File     `json:"kernel"`
	Initramfs     File     `json:"initramfs"`
}

// File is one file beside the manifest.
type File struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`   // bytes
	SHA256 string `json:"sha256"` // lower-case hexadecimal
}

func (f File) validate() error {
	digest, err := hex.DecodeString(f.SHA256)
	if err != nil || len(digest) != 32 {
		return fmt.Errorf("the digest of %q is malformed", f.Name)
	}
	if f.Name == "" || f.Name == "." || f.Name == ".." || strings.Contains(f.Name, "/") || f.Size <= 0 {
		return fmt.Errorf("the entry %q is malformed", f.Name)
	}
	return nil
}

func readManifest(root *os.Root) (Manifest, error) {
	f, err := root.Open(manifestFile)
	if err != nil {
		return Manifest{}, err
	}
	defer f.Close()
	data, err := bounded(f, maxManifest)
	if err != nil {
		return Manifest{}, err
	}
	var m Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return Manifest{}, err
	}
	for _, file := range []File{m.Kernel, m.Initramfs} {
		if err := file.validate(); err != nil {
			return Manifest{}, err
		}
	}
	return m, nil
}

// writeManifest replaces the manifest in one step.
func writeManifest(root *os.Root, m Manifest) error {
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return replaceFile(root, manifestFile, func(w io.Writer) error {
		_, err := w.Write(append(data, '\n'))
		return err
	})
}
