package ociimage

import (
	"archive/tar"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// The meaning of layers, by the OCI image specification's section on layer changesets.
func TestLayerSemantics(t *testing.T) {
	t.Parallel()
	dirs := func(names ...string) (out []entry) {
		for _, n := range names {
			out = append(out, entry{name: n, kind: tar.TypeDir})
		}
		return out
	}
	for name, c := range map[string]struct {
		layers [][]entry
		want   string
	}{
		"later wins":                    {[][]entry{{{name: "f", content: "1"}}, {{name: "f", content: "2", mode: 0o600}}}, "f 100600 0:0 \"2\"\n"},
		"whiteout":                      {[][]entry{{{name: "d/a"}, {name: "d/b"}}, {{name: "d/.wh.a"}}}, "d 40755 0:0\nd/b 100755 0:0 \"\"\n"},
		"whiteout of a directory":       {[][]entry{{{name: "d/a/x"}, {name: "d/b"}}, {{name: "d/.wh.a"}}}, "d 40755 0:0\nd/b 100755 0:0 \"\"\n"},
		"whiteout of nothing":           {[][]entry{{{name: "a"}}, {{name: ".wh.b"}, {name: "no/such/.wh.c"}}}, "a 100755 0:0 \"\"\n"},
		"whiteout spares its own layer": {[][]entry{{{name: "d/a"}}, {{name: "d/a", content: "new"}, {name: "d/.wh.a"}}}, "d 40755 0:0\nd/a 100755 0:0 \"new\"\n"},
		"opaque":                        {[][]entry{{{name: "d/a"}, {name: "d/s/b"}}, {{name: "d/.wh..wh..opq"}, {name: "d/c"}}}, "d 40755 0:0\nd/c 100755 0:0 \"\"\n"},
		"opaque comes last": {[][]entry{{{name: "d/a"}, {name: "d/s/b"}}, {{name: "d/s/c"}, {name: "d/.wh..wh..opq"}}},
			"d 40755 0:0\nd/s 40755 0:0\nd/s/c 100755 0:0 \"\"\n"},
		"opaque root":             {[][]entry{{{name: "a"}, {name: "b/c"}}, {{name: ".wh..wh..opq"}, {name: "d"}}}, "d 100755 0:0 \"\"\n"},
		"opaque then again":       {[][]entry{{{name: "d/a"}}, {{name: "d/.wh..wh..opq"}}, {{name: "d/a", content: "3"}}}, "d 40755 0:0\nd/a 100755 0:0 \"3\"\n"},
		"file becomes directory":  {[][]entry{{{name: "x", content: "f"}}, {{name: "x", kind: tar.TypeDir}, {name: "x/y"}}}, "x 40755 0:0\nx/y 100755 0:0 \"\"\n"},
		"directory becomes file":  {[][]entry{append(dirs("x"), entry{name: "x/y"}), {{name: "x", content: "f"}}}, "x 100755 0:0 \"f\"\n"},
		"directory keeps content": {[][]entry{{{name: "x", kind: tar.TypeDir}, {name: "x/y"}}, {{name: "x", kind: tar.TypeDir, mode: 0o700, uid: 5}}}, "x 40700 5:0\nx/y 100755 0:0 \"\"\n"},
		"through a link": {[][]entry{{{name: "real", kind: tar.TypeDir}, {name: "l", kind: tar.TypeSymlink, link: "real"}}, {{name: "l/f"}}},
			"l 120777 0:0 -> real\nreal 40755 0:0\nreal/f 100755 0:0 \"\"\n"},
		"through an absolute link": {[][]entry{{{name: "usr/lib", kind: tar.TypeDir}, {name: "lib", kind: tar.TypeSymlink, link: "/usr/lib"}}, {{name: "lib/f"}, {name: "lib/.wh.g"}}},
			"lib 120777 0:0 -> /usr/lib\nusr 40755 0:0\nusr/lib 40755 0:0\nusr/lib/f 100755 0:0 \"\"\n"},
		"whiteout through a link": {[][]entry{{{name: "usr/lib/g"}, {name: "lib", kind: tar.TypeSymlink, link: "/usr/lib"}}, {{name: "lib/.wh.g"}}},
			"lib 120777 0:0 -> /usr/lib\nusr 40755 0:0\nusr/lib 40755 0:0\n"},
		"whiteout of a link": {[][]entry{{{name: "t/f"}, {name: "l", kind: tar.TypeSymlink, link: "t"}}, {{name: ".wh.l"}}}, "t 40755 0:0\nt/f 100755 0:0 \"\"\n"},
		"modes and owners": {[][]entry{{{name: "s", mode: 0o6755, uid: 1234, gid: 65534}, {name: "t", kind: tar.TypeDir, mode: 0o1777, gid: 7}, {name: "z", mode: 0o0}}},
			"s 106755 1234:65534 \"\"\nt 41777 0:7\nz 100755 0:0 \"\"\n"},
		"pipe":           {[][]entry{{{name: "p", kind: tar.TypeFifo, mode: 0o640, uid: 3}}}, "p 10640 3:0\n"},
		"device of /dev": {[][]entry{{{name: "dev/null", kind: tar.TypeChar}, {name: "f"}}}, "f 100755 0:0 \"\"\n"},
		"odd names":      {[][]entry{{{name: "./a\nb"}, {name: "/c\xff d"}, {name: "e//f/./g"}}}, "a\nb 100755 0:0 \"\"\nc\xff d 100755 0:0 \"\"\ne 40755 0:0\ne/f 40755 0:0\ne/f/g 100755 0:0 \"\"\n"},
		"aufs marks":     {[][]entry{{{name: ".wh..wh.plnk", kind: tar.TypeDir}, {name: ".wh..wh.aufs"}, {name: "f"}}}, "f 100755 0:0 \"\"\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var layers [][]byte
			for _, l := range c.layers {
				layers = append(layers, layerTar(t, l...))
			}
			if diff := cmp.Diff(c.want, listing(t, mustUnpack(t, layers...))); diff != "" {
				t.Errorf("tree (-want +got):\n%s", diff)
			}
		})
	}
}

func TestHardLinks(t *testing.T) {
	t.Parallel()
	dir := mustUnpack(t, layerTar(t, entry{name: "a", content: "x"}, entry{name: "s", kind: tar.TypeSymlink, link: "a"}),
		layerTar(t, entry{name: "d/b", kind: tar.TypeLink, link: "/a"}, entry{name: "c", kind: tar.TypeLink, link: "./d/b"},
			entry{name: "t", kind: tar.TypeLink, link: "s"}, entry{name: "a", kind: tar.TypeLink, link: "a"}))
	var first unix.Stat_t
	for i, name := range []string{"a", "d/b", "c"} {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, name), &st); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = st
		}
		if st.Ino != first.Ino || st.Nlink != 3 {
			t.Errorf("%s: inode %d with %d links, a has %d", name, st.Ino, st.Nlink, first.Ino)
		}
	}
	if target, err := os.Readlink(filepath.Join(dir, "t")); err != nil || target != "a" {
		t.Errorf("a hard link to a symbolic link: %q, %v", target, err)
	}
}

func TestAttributes(t *testing.T) {
	t.Parallel()
	capability := "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	dir := mustUnpack(t, layerTar(t, entry{name: "ping", uid: 9, pax: map[string]string{xattrRecord + "security.capability": capability,
		xattrRecord + "security.selinux": "host_t", xattrRecord + "trusted.overlay.opaque": "y"}}))
	buf := make([]byte, 256)
	n, err := unix.Lgetxattr(filepath.Join(dir, "ping"), "security.capability", buf)
	if err != nil || string(buf[:n]) != capability {
		t.Errorf("capability %q, %v", buf[:max(n, 0)], err)
	}
	if _, err := unix.Lgetxattr(filepath.Join(dir, "ping"), "trusted.overlay.opaque", buf); err == nil {
		t.Error("a mark of overlayfs was taken over")
	}
}

func TestCompressions(t *testing.T) {
	t.Parallel()
	plain := layerTar(t, entry{name: "f", content: "x"})
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, packed := range map[string][]byte{"none": plain, "gzip": zip(t, plain), "zstd": w.EncodeAll(plain, nil)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := members{"manifest.json": []byte(`[{"Config":"c.json","Layers":["a/layer.tar"]}]`), "a/layer.tar": packed,
				"c.json": jsonOf(t, map[string]any{"rootfs": map[string]any{"diff_ids": []string{digestOf(plain)}}})}
			dir, check := jail(t)
			defer check()
			if err := unpackInto(t, dir, m.tar(t), DefaultLimits()); err != nil {
				t.Fatal(err)
			}
			if got := listing(t, dir); got != "f 100755 0:0 \"x\"\n" {
				t.Error(got)
			}
		})
	}
}

func TestScanListsOwners(t *testing.T) {
	t.Parallel()
	data := oci(t, nil, layerTar(t, entry{name: "a", uid: 7, gid: 1 << 20}), layerTar(t, entry{name: "b", uid: maxID})).tar(t)
	a, img, err := open(t, data, DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	got, err := a.scan(img)
	if diff := cmp.Diff(Owners{UIDs: []uint32{0, 7, maxID}, GIDs: []uint32{0, 1 << 20}}, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	a, img, err := open(t, oci(t, map[string]any{"User": "1000:app", "Env": []string{"A=b=c", "no.name=x", "E="}, "Entrypoint": []string{"/e"}, "Cmd": []string{"c"}, "WorkingDir": "srv/../x"}).tar(t), DefaultLimits())
	if err != nil || a == nil {
		t.Fatal(err)
	}
	got, err := img.config.settings()
	want := Settings{User: "1000", Env: map[string]string{"A": "b=c", "E": ""}, Entrypoint: []string{"/e", "c"}, Workdir: "/x"}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	id1, err1 := got.imageID()
	got.User = ""
	id2, err2 := got.imageID()
	if err1 != nil || err2 != nil || id1 == id2 || len(id1) != 36 {
		t.Errorf("ids %q %q", id1, id2)
	}
}
