package ociimage

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// smallLimits keep a fuzzed layer cheap.
func smallLimits() Limits {
	l := DefaultLimits()
	l.Bytes, l.Entries, l.Names, l.Slack = 1<<20, 200, 1<<16, 1<<20
	return l
}

// Fuzz with -fuzzminimizetime 1x: minimising archives takes the time that trying new ones needs.

// FuzzLayer unpacks any bytes as a layer, twice, in a tree that something lies beside.
func FuzzLayer(f *testing.F) {
	for _, entries := range [][]entry{
		{{name: "a", content: "x"}, {name: "d", kind: tar.TypeDir}, {name: "d/.wh.a"}, {name: "d/.wh..wh..opq"}},
		{{name: "l", kind: tar.TypeSymlink, link: ".."}, {name: "l/outside", content: "x"}, {name: "h", kind: tar.TypeLink, link: "l"}},
		{{name: "p", kind: tar.TypeFifo}, {name: "dev/x", kind: tar.TypeChar}, {name: "../x"}},
	} {
		f.Add(layerTar(f, entries...))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		dir, check := jail(t)
		root, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		u := newUnpacker(root, newBudget(smallLimits()))
		for range 2 {
			u.fresh = map[string]bool{}
			if err := eachHeader(bytes.NewReader(data), u.budget, u.entry); err != nil {
				break
			}
		}
		check()
		err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
			if err == nil && d.Type()&(fs.ModeDevice|fs.ModeCharDevice|fs.ModeSocket) != 0 {
				return errors.New("a device was made")
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// FuzzArchive opens any bytes as an archive.
func FuzzArchive(f *testing.F) {
	f.Add(oci(f, map[string]any{"User": "u"}, layerTar(f, entry{name: "a", content: "x"})).tar(f))
	f.Add(members{"manifest.json": []byte(`[{"Config":"c","Layers":["l"]}]`), "c": []byte(`{"rootfs":{"diff_ids":["sha256:00"]}}`), "l": []byte("x")}.tar(f))
	f.Fuzz(func(t *testing.T, data []byte) {
		a, img, err := open(t, data, smallLimits())
		if err != nil {
			return
		}
		if _, err := img.config.settings(); err != nil {
			return
		}
		_, _ = a.scan(img)
	})
}
