package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// guest names the files that the installation boots.
type guest struct{ kernel, initramfs string }

func guestFiles(dir string) (guest, error) {
	data, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	if err != nil {
		return guest{}, err
	}
	var m struct{ Kernel, Initramfs struct{ Name string } }
	if err := json.Unmarshal(data, &m); err != nil {
		return guest{}, fmt.Errorf("manifest of the guest: %w", err)
	}
	return guest{kernel: filepath.Join(dir, m.Kernel.Name), initramfs: filepath.Join(dir, m.Initramfs.Name)}, nil
}

// templateDisk finds the root disk of a template on the pool.
func templateDisk(dir, digest string) (string, error) {
	path := filepath.Join(dir, strings.TrimPrefix(digest, "sha256:"), "rootfs.img")
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("disk of the template: %w", err)
	}
	return path, nil
}
