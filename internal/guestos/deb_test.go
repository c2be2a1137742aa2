package guestos

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func everything(string) bool { return true }

func openTempRoot(t testing.TB) *os.Root {
	t.Helper()
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root
}

// filesIn lists the regular files below a root with their contents.
func filesIn(t *testing.T, root *os.Root) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := fs.WalkDir(root.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := root.ReadFile(p)
		files[p] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestExtractDeb(t *testing.T) {
	t.Parallel()
	content := tarOf(t, debFile("./boot/vmlinuz-1", []byte("kernel")), debFile("./usr/share/doc/copyright", []byte("text")))
	for name, deb := range map[string][]byte{
		"xz":    debOf("data.tar.xz", packXZ(t, content)),
		"zstd":  debOf("data.tar.zst", packZstd(t, content)),
		"gzip":  debOf("data.tar.gz", packGzip(t, content)),
		"plain": debOf("data.tar", content),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := openTempRoot(t)
			if err := ExtractDeb(t.Context(), bytes.NewReader(deb), root, kernelPart); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(map[string]string{"boot/vmlinuz-1": "kernel"}, filesIn(t, root)); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
		})
	}
}

func TestExtractDebLeavesNothingOutside(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	if err := os.Mkdir(filepath.Join(parent, "in"), 0o755); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(filepath.Join(parent, "in"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	content := tarOf(t,
		debFile("../escaped", []byte("x")),
		debFile("/escaped", []byte("x")),
		debFile("a/../../escaped", []byte("x")),
		debEntry{tar.Header{Name: "link", Typeflag: tar.TypeSymlink, Linkname: ".."}, nil},
		debEntry{tar.Header{Name: "hard", Typeflag: tar.TypeLink, Linkname: "../escaped"}, nil},
		debEntry{tar.Header{Name: "device", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}, nil},
		debFile("link/escaped", []byte("inside, since the link was passed over")),
	)
	if err := ExtractDeb(t.Context(), bytes.NewReader(debOf("data.tar", content)), root, everything); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"link/escaped": "inside, since the link was passed over"}
	if diff := cmp.Diff(want, filesIn(t, root)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if entries, err := os.ReadDir(parent); err != nil || len(entries) != 1 {
		t.Errorf("beside the root: %v, %v", entries, err)
	}
}

func TestExtractDebRefuses(t *testing.T) {
	t.Parallel()
	whole := debOf("data.tar.xz", packXZ(t, tarOf(t, debFile("a", make([]byte, 5000)))))
	twice := debFile("a", []byte("x"))
	for name, deb := range map[string][]byte{
		"empty":         nil,
		"no archive":    []byte("!<arch>X and so on"),
		"no data":       debOf("other", []byte("x")),
		"cut off":       whole[:len(whole)-40],
		"odd data":      debOf("data.tar", []byte("this is no tar at all")),
		"written twice": debOf("data.tar", tarOf(t, twice, twice)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := ExtractDeb(t.Context(), bytes.NewReader(deb), openTempRoot(t), everything); err == nil {
				t.Error("accepted")
			}
		})
	}
}

func TestExtractDebEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := ExtractDeb(ctx, bytes.NewReader(kernelDeb(t)), openTempRoot(t), everything)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want that the context was canceled", err)
	}
}

func FuzzExtractDeb(f *testing.F) {
	content := tarOf(f, debFile("./boot/vmlinuz-1", []byte("kernel")))
	f.Add(debOf("data.tar", content))
	f.Add(debOf("data.tar.gz", packGzip(f, content)))
	f.Fuzz(func(t *testing.T, deb []byte) {
		if bytes.Contains(deb, []byte(magicXZ)) || bytes.Contains(deb, []byte(magicZstd)) {
			return // their readers are fuzzed where they are written
		}
		_ = ExtractDeb(t.Context(), bytes.NewReader(deb), openTempRoot(t), func(name string) bool {
			if !fs.ValidPath(name) {
				t.Errorf("pick was asked for %q", name)
			}
			return len(name) < 100
		})
	})
}
