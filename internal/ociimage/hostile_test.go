package ociimage

import (
	"archive/tar"
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// What hostile layers try. Each must be refused, or end inside the tree; nothing outside may change.
func TestHostileLayers(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("d/", 2100)
	for name, c := range map[string]struct {
		entries []entry
		refused string // "" when it is harmless inside
	}{
		"dot dot":                {[]entry{{name: "../outside", content: "x"}}, "leads out"},
		"dot dot inside":         {[]entry{{name: "a/../../outside", content: "x"}}, "leads out"},
		"absolute":               {[]entry{{name: "/etc/passwd", content: "x"}}, ""},
		"link out, write":        {[]entry{{name: "l", kind: tar.TypeSymlink, link: ".."}, {name: "l/outside", content: "x"}}, ""},
		"absolute link, write":   {[]entry{{name: "l", kind: tar.TypeSymlink, link: "/"}, {name: "l/outside", content: "x"}}, ""},
		"link to file, write":    {[]entry{{name: "l", kind: tar.TypeSymlink, link: "../outside"}, {name: "l", content: "x"}}, ""},
		"link out, chmod":        {[]entry{{name: "l", kind: tar.TypeSymlink, link: "../outside", mode: 0o777}}, ""},
		"link out, directory":    {[]entry{{name: "l", kind: tar.TypeSymlink, link: ".."}, {name: "l", kind: tar.TypeDir, mode: 0o777}}, ""},
		"link out, whiteout":     {[]entry{{name: "l", kind: tar.TypeSymlink, link: ".."}, {name: "l/.wh.outside"}}, ""},
		"link out, opaque":       {[]entry{{name: "l", kind: tar.TypeSymlink, link: ".."}, {name: "l/.wh..wh..opq"}}, ""},
		"chain of links":         {[]entry{{name: "a", kind: tar.TypeSymlink, link: "b/.."}, {name: "b", kind: tar.TypeSymlink, link: "../.."}, {name: "a/outside"}}, ""},
		"loop of links":          {[]entry{{name: "a", kind: tar.TypeSymlink, link: "b"}, {name: "b", kind: tar.TypeSymlink, link: "a"}, {name: "a/x"}}, "too many links"},
		"links that double":      {append(doubling(), entry{name: "l30/x"}), "too many links"},
		"hard link out":          {[]entry{{name: "h", kind: tar.TypeLink, link: "../outside"}}, "leads out"},
		"hard link by a link":    {[]entry{{name: "l", kind: tar.TypeSymlink, link: ".."}, {name: "h", kind: tar.TypeLink, link: "l/outside"}}, "does not exist"},
		"hard link to link":      {[]entry{{name: "l", kind: tar.TypeSymlink, link: "../outside"}, {name: "h", kind: tar.TypeLink, link: "l"}, {name: "h", content: "x"}}, ""},
		"hard link to directory": {[]entry{{name: "d", kind: tar.TypeDir}, {name: "h", kind: tar.TypeLink, link: "d"}}, "hard link to a directory"},
		"hard link to nothing":   {[]entry{{name: "h", kind: tar.TypeLink, link: "nothing"}}, "does not exist"},
		"hard link to the root":  {[]entry{{name: "h", kind: tar.TypeLink, link: "/"}}, "hard link to the root"},
		"device":                 {[]entry{{name: "d/sda", kind: tar.TypeBlock}}, "is a device"},
		"character device":       {[]entry{{name: "kmsg", kind: tar.TypeChar}}, "is a device"},
		"device by dev/..":       {[]entry{{name: "dev/../kmsg", kind: tar.TypeChar}}, "leads out"},
		"whiteout of dot dot":    {[]entry{{name: ".wh..."}}, "whiteout names nothing"},
		"whiteout of the parent": {[]entry{{name: "d/.wh..."}, {name: "d/.wh.."}}, "whiteout names nothing"},
		"whiteout of nothing":    {[]entry{{name: ".wh."}}, "whiteout names nothing"},
		"file as directory":      {[]entry{{name: "f"}, {name: "f/x"}}, "is not a directory"},
		"root by dot dot":        {[]entry{{name: "x/..", kind: tar.TypeFifo}}, "leads out"},
		"root as a link":         {[]entry{{name: ".", kind: tar.TypeSymlink, link: "/"}}, "not a directory"},
		"long name":              {[]entry{{name: strings.Repeat("n", 300)}}, "too long"},
		"deep name":              {[]entry{{name: deep + "x"}}, "a name that is none"},
		"long link":              {[]entry{{name: "l", kind: tar.TypeSymlink, link: strings.Repeat("x/", 4000)}}, "link to nothing"},
		"unknown type":           {[]entry{{name: "x", kind: tar.TypeCont}}, "type that is not known"},
		"unmapped owner":         {[]entry{{name: "x", uid: 1<<32 - 1}}, "an owner that is none"},
		"negative owner":         {[]entry{{name: "x", gid: -1}}, "an owner that is none"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, check := jail(t)
			err := unpackInto(t, dir, oci(t, nil, layerTar(t, c.entries...)).tar(t), DefaultLimits())
			if c.refused == "" && err != nil || c.refused != "" && !isRefusal(err, c.refused) {
				t.Errorf("got %v, want a refusal with %q", err, c.refused)
			}
			check()
		})
	}
}

// doubling is links that would each lead twice through the one before.
func doubling() []entry {
	all := []entry{{name: "l0", kind: tar.TypeSymlink, link: "."}}
	for i := range 30 {
		all = append(all, entry{name: fmt.Sprintf("l%d", i+1), kind: tar.TypeSymlink, link: fmt.Sprintf("l%d/l%d", i, i)})
	}
	return all
}

func TestLimits(t *testing.T) {
	t.Parallel()
	many := func(n int) (out []entry) {
		for i := range n {
			out = append(out, entry{name: fmt.Sprint("file", i), uid: i})
		}
		return out
	}
	big := entry{name: "big", content: strings.Repeat("\x00", 1<<20)}
	for name, c := range map[string]struct {
		change  func(*Limits)
		layers  [][]entry
		refused string
	}{
		"layers":               {func(l *Limits) { l.Layers = 1 }, [][]entry{{{name: "a"}}, {{name: "b"}}}, "more than 1 layers"},
		"entries":              {func(l *Limits) { l.Entries = 3 }, [][]entry{many(2), many(2)}, "more than 3 files"},
		"names":                {func(l *Limits) { l.Names = 8 }, [][]entry{many(2)}, "file names"},
		"bytes":                {func(l *Limits) { l.Bytes = 1 << 19 }, [][]entry{{big}}, "more than 524288 bytes"},
		"bytes of many layers": {func(l *Limits) { l.Bytes = 3 << 19 }, [][]entry{{big}, {big}}, "more than 1572864 bytes"},
		"ratio":                {func(l *Limits) { l.Ratio, l.Slack = 10, 1024 }, [][]entry{{big}}, "times its size"},
		"owners":               {func(l *Limits) { l.Owners = 4 }, [][]entry{many(5)}, "more than 4 users"},
		"document":             {func(l *Limits) { l.Document = 10 }, [][]entry{{{name: "a"}}}, "more than 10 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limits := DefaultLimits()
			c.change(&limits)
			var layers [][]byte
			for _, l := range c.layers {
				layers = append(layers, layerTar(t, l...))
			}
			dir, check := jail(t)
			if err := unpackInto(t, dir, oci(t, nil, layers...).tar(t), limits); !isRefusal(err, c.refused) {
				t.Errorf("got %v, want %q", err, c.refused)
			}
			check()
		})
	}
}

// What an entry says of its size is not believed.
func TestLyingSize(t *testing.T) {
	t.Parallel()
	limits := DefaultLimits()
	limits.Bytes = 1 << 20
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "x", Mode: 0o644, Size: 1 << 40}); err != nil {
		t.Fatal(err)
	}
	dir, check := jail(t)
	if err := unpackInto(t, dir, oci(t, nil, buf.Bytes()).tar(t), limits); !isRefusal(err, "more than 1048576 bytes") {
		t.Errorf("an entry that says 1 TiB: %v", err)
	}
	check()
}

func TestDamagedArchives(t *testing.T) {
	t.Parallel()
	good := func() members { return oci(t, nil, layerTar(t, entry{name: "a", content: "x"})) }
	for name, c := range map[string]struct {
		change  func(m members)
		refused string
	}{
		"no index":    {func(m members) { delete(m, "index.json") }, "neither an OCI layout"},
		"bad index":   {func(m members) { m["index.json"] = []byte("{") }, "is not valid"},
		"empty index": {func(m members) { m["index.json"] = []byte("{}") }, "0 of its images"},
		"another machine": {func(m members) {
			m["index.json"] = []byte(`{"manifests":[{"digest":"sha256:00","platform":{"os":"plan9","architecture":"mips"}}]}`)
		}, "0 of its images fit linux/" + runtime.GOARCH},
		"digest as a path": {func(m members) { m["index.json"] = []byte(`{"manifests":[{"digest":"sha256:../../etc/passwd"}]}`) }, "is not a sha256 digest"},
		"missing blob":     {func(m members) { dropBlob(m, "diff_ids") }, "has no member"},
		"changed blob":     {func(m members) { editBlob(m, `"diff_ids"`, ` "diff_ids"`) }, "has the digest"},
		"changed layer":    {func(m members) { changeLayers(m) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := good()
			c.change(m)
			dir, check := jail(t)
			if err := unpackInto(t, dir, m.tar(t), DefaultLimits()); !isRefusal(err, c.refused) {
				t.Errorf("got %v, want %q", err, c.refused)
			}
			check()
		})
	}
}

func dropBlob(m members, holds string) {
	for name, data := range m {
		if strings.HasPrefix(name, "blobs/") && bytes.Contains(data, []byte(holds)) {
			delete(m, name)
		}
	}
}

func editBlob(m members, from, to string) {
	for name, data := range m {
		if strings.HasPrefix(name, "blobs/") {
			m[name] = bytes.Replace(data, []byte(from), []byte(to), 1)
		}
	}
}

func changeLayers(m members) {
	for name, data := range m {
		if bytes.HasPrefix(data, []byte{0x1f, 0x8b}) {
			changed := bytes.Clone(data)
			changed[len(changed)/2] ^= 0xff
			m[name] = changed
		}
	}
}

func TestCutOffArchive(t *testing.T) {
	t.Parallel()
	data := oci(t, nil, layerTar(t, entry{name: "a", content: strings.Repeat("x", 5000)})).tar(t)
	for cut := 0; cut < len(data)-2048; cut += 512 {
		dir, check := jail(t)
		if err := unpackInto(t, dir, data[:cut], DefaultLimits()); !isRefusal(err, "") {
			t.Errorf("cut at %d: %v", cut, err)
		}
		check()
	}
}
