package ociimage

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sort"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// entry is one entry of a layer of a test.
type entry struct {
	name, link string
	kind       byte // 0: a file
	mode       int64
	uid, gid   int
	content    string
	pax        map[string]string
}

func layerTar(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, e := range entries {
		h := &tar.Header{Typeflag: e.kind, Name: e.name, Linkname: e.link, Mode: e.mode, Uid: e.uid, Gid: e.gid, PAXRecords: e.pax}
		if e.kind == 0 {
			h.Typeflag, h.Size = tar.TypeReg, int64(len(e.content))
		}
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		if err := tw.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write([]byte(e.content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func zip(t testing.TB, data []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	if _, err := z.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return digestPrefix + hex.EncodeToString(sum[:])
}

func jsonOf(t testing.TB, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// members is an archive as a map.
type members map[string][]byte

func (m members) tar(t testing.TB) []byte {
	t.Helper()
	var names []string
	for name := range m {
		names = append(names, name)
	}
	sort.Strings(names)
	var all []entry
	for _, name := range names {
		all = append(all, entry{name: name, content: string(m[name])})
	}
	return layerTar(t, all...)
}

// oci is an OCI layout of layers, each compressed.
func oci(t testing.TB, cfg map[string]any, layers ...[]byte) members {
	t.Helper()
	m := members{}
	put := func(data []byte) map[string]any {
		m["blobs/sha256/"+strings.TrimPrefix(digestOf(data), digestPrefix)] = data
		return map[string]any{"digest": digestOf(data), "size": len(data)}
	}
	var ids []string
	var descriptors []any
	for _, l := range layers {
		ids = append(ids, digestOf(l))
		descriptors = append(descriptors, put(zip(t, l)))
	}
	config := put(jsonOf(t, map[string]any{"architecture": runtime.GOARCH, "os": "linux", "config": cfg, "rootfs": map[string]any{"diff_ids": ids}}))
	manifest := put(jsonOf(t, map[string]any{"config": config, "layers": descriptors}))
	m["index.json"] = jsonOf(t, map[string]any{"manifests": []any{manifest}})
	return m
}

func open(t testing.TB, data []byte, limits Limits) (*archive, image, error) {
	t.Helper()
	a, err := openArchive(bytes.NewReader(data), int64(len(data)), limits)
	if err != nil {
		return nil, image{}, err
	}
	img, err := a.image()
	return a, img, err
}

// unpackInto scans and unpacks an archive as the worker does.
func unpackInto(t testing.TB, dir string, data []byte, limits Limits) error {
	t.Helper()
	a, img, err := open(t, data, limits)
	if err != nil {
		return err
	}
	if _, err := a.scan(img); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	return a.unpack(img, root)
}

// jail is a directory to unpack into, with a file beside it that must stay as it is.
func jail(t testing.TB) (dir string, check func()) {
	t.Helper()
	parent := t.TempDir()
	dir = filepath.Join(parent, "tree")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	outside := filepath.Join(parent, "outside")
	if err := os.WriteFile(outside, []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir, func() {
		t.Helper()
		list, err := os.ReadDir(parent)
		if err != nil || len(list) != 2 {
			t.Errorf("outside the tree: %v, %v", list, err)
		}
		data, err := os.ReadFile(outside)
		info, serr := os.Stat(outside)
		if err != nil || serr != nil || string(data) != "untouched" || info.Mode() != 0o600 {
			t.Errorf("the file outside: %q %v, %v, %v", data, info, err, serr)
		}
	}
}

func mustUnpack(t *testing.T, layers ...[]byte) string {
	t.Helper()
	dir, check := jail(t)
	if err := unpackInto(t, dir, oci(t, nil, layers...).tar(t), DefaultLimits()); err != nil {
		t.Fatal(err)
	}
	check()
	return dir
}

// listing shows a tree: one line a file with mode, owner and content or target.
func listing(t testing.TB, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s %o %d:%d", rel, st.Mode, st.Uid, st.Gid)
		switch {
		case d.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			b.WriteString(" -> " + target)
		case d.Type().IsRegular():
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %q", data)
		}
		b.WriteString("\n")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func isRefusal(err error, text string) bool {
	r, ok := errors.AsType[*refusal](err)
	return ok && strings.Contains(r.text, text)
}
