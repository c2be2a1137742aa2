//go:build realvm

package qemu_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/space-sandbox/space/internal/vmm"
	"github.com/space-sandbox/space/internal/vmm/vmmtest"
)

func TestDriver(t *testing.T) {
	l := newLab(t)
	vmmtest.Run(t, func(t *testing.T) vmmtest.Setup {
		return vmmtest.Setup{
			Driver:    func(t *testing.T) vmm.Driver { return l.driver(t) },
			Isolation: vmm.IsolationEmulated,
			Machine:   l.machine,
			Patience:  patience,
			Broken: map[string]func(*testing.T, *vmm.Spec){
				"no kernel":         func(_ *testing.T, s *vmm.Spec) { s.Kernel = nil },
				"empty kernel":      func(t *testing.T, s *vmm.Spec) { s.Kernel = emptyFile(t) },
				"kernel of nothing": func(t *testing.T, s *vmm.Spec) { s.Kernel = fileWith(t, "\x7fELF and no more") },
				"no initrd":         func(_ *testing.T, s *vmm.Spec) { s.Initrd = nil },
				"no memory":         func(_ *testing.T, s *vmm.Spec) { s.RAM = nil },
				"memory too small":  func(_ *testing.T, s *vmm.Spec) { s.MemoryMiB++ },
				"no disk":           func(_ *testing.T, s *vmm.Spec) { s.Disk = nil },
				"no tap":            func(_ *testing.T, s *vmm.Spec) { s.Tap = nil },
				"a file for a tap":  func(t *testing.T, s *vmm.Spec) { s.Tap = emptyFile(t) },
				"root":              func(_ *testing.T, s *vmm.Spec) { s.UID, s.GID = 0, 0 },
				"no run directory":  func(_ *testing.T, s *vmm.Spec) { s.RunDir = "" },
			},
		}
	})
}

func emptyFile(t *testing.T) *os.File { return fileWith(t, "") }

func fileWith(t *testing.T, text string) *os.File {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file(t)(os.OpenFile(path, os.O_RDWR, 0))
}

// TestProbe: on this host either answer may be right, but never without its reason.
func TestProbe(t *testing.T) {
	l := newLab(t)
	p := l.driver(t).Probe(t.Context())
	t.Logf("%+v", p)
	if !p.Available || p.Version == "" {
		t.Errorf("QEMU is not found: %+v", p)
	}
	if p.Isolation != vmm.IsolationKVM && (p.Isolation != vmm.IsolationEmulated || p.Reason == "") {
		t.Errorf("neither KVM nor a reason: %+v", p)
	}
}

// TestProofOfLife is the positive control of TestProbe.
func TestProofOfLife(t *testing.T) {
	l := newLab(t)
	seen, err := l.driver(t).ProveEmulated(bounded(t))
	if err != nil {
		t.Errorf("%v; the console: %s", err, seen)
	}
	t.Logf("%.300q", seen)
}
