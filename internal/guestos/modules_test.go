package guestos

import (
	"bytes"
	"slices"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

func moduleNames(modules []Module) []string {
	var names []string
	for _, m := range modules {
		names = append(names, m.Name)
	}
	return names
}

func order(t *testing.T, files fstest.MapFS, wanted ...string) ([]Module, error) {
	t.Helper()
	tree, err := openModuleTree(files)
	if err != nil {
		t.Fatal(err)
	}
	return tree.ordered(wanted)
}

func TestOrderFromTheModulesThemselves(t *testing.T) {
	t.Parallel()
	files := fstest.MapFS{
		"kernel/a.ko":          {Data: elfModule("a", "b,c")},
		"kernel/b.ko.xz":       {Data: packXZ(t, elfModule("b", "d-e"))},
		"kernel/c.ko.zst":      {Data: packZstd(t, elfModule("c", "b"))},
		"kernel/sub/d-e.ko.gz": {Data: packGzip(t, elfModule("d_e", "f"))},
		"modules.builtin":      {Data: []byte("kernel/f.ko\n")},
	}
	modules, err := order(t, files, "a", "f", "b")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"d_e", "b", "c", "a"}, moduleNames(modules)); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	for _, m := range modules {
		if !startsWith(m.Data, magicELF) {
			t.Errorf("%s was not decompressed", m.Name)
		}
	}
}

func TestOrderFromModulesDep(t *testing.T) {
	t.Parallel()
	files := fstest.MapFS{
		"kernel/a.ko": {Data: elfModule("a", "")}, // modules.dep knows better
		"kernel/b.ko": {Data: elfModule("b", "")},
		"kernel/c.ko": {Data: elfModule("c", "")},
		"modules.dep": {Data: []byte("kernel/a.ko: kernel/b.ko kernel/c.ko\nkernel/b.ko: kernel/c.ko\nkernel/c.ko:\n")},
	}
	modules, err := order(t, files, "a")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"c", "b", "a"}, moduleNames(modules)); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

func TestOrderRefuses(t *testing.T) {
	t.Parallel()
	for name, files := range map[string]fstest.MapFS{
		"missing":            {"a.txt": {}},
		"missing dependency": {"a.ko": {Data: elfModule("a", "b")}},
		"circle":             {"a.ko": {Data: elfModule("a", "b")}, "b.ko": {Data: elfModule("b", "a")}},
		"no module":          {"a.ko": {Data: []byte("not ELF")}},
		"no modinfo":         {"a.ko": {Data: elfKernel(500)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if modules, err := order(t, files, "a"); err == nil {
				t.Errorf("accepted: %v", moduleNames(modules))
			}
		})
	}
}

func TestWantedModulesOfACloudKernel(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	m, err := Build(t.Context(), buildConfig(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	before := func(a, b string) {
		t.Helper()
		if i, j := slices.Index(m.Modules, a), slices.Index(m.Modules, b); i < 0 || j < 0 || i > j {
			t.Errorf("%s does not come before %s in %v", a, b, m.Modules)
		}
	}
	before("virtio", "virtio_mmio")
	before("virtio_ring", "virtio_blk")
	before("failover", "net_failover")
	before("net_failover", "virtio_net")
	before("inet_diag", "tcp_diag")
	before("virtio", "virtio_rng")
	if slices.Contains(m.Modules, "other") {
		t.Errorf("a module nobody wants is in %v", m.Modules)
	}
}

func TestSignaturesAreCutOff(t *testing.T) {
	t.Parallel()
	plain := elfModule("a", "")
	signed := append(slices.Clone(plain), bytes.Repeat([]byte{0x30}, 300)...)
	signed = append(signed, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 300>>8, 300&0xff)
	signed = append(signed, signatureMarker...)
	if got := withoutSignature(signed); !bytes.Equal(got, plain) {
		t.Errorf("%d bytes remain, want %d", len(got), len(plain))
	}
	if got := withoutSignature(plain); !bytes.Equal(got, plain) {
		t.Error("a module without a signature was changed")
	}
	damaged := append([]byte("short\xff\xff\xff\xff"), signatureMarker...)
	if got := withoutSignature(damaged); !bytes.Equal(got, damaged) {
		t.Error("a module with a signature longer than itself was changed")
	}
}
