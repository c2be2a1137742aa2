package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func archiveOf(t *testing.T, headers ...tar.Header) *bytes.Buffer {
	t.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, h := range headers {
		content := ""
		if h.Typeflag == tar.TypeReg {
			content, h.Linkname, h.Size = h.Linkname, "", int64(len(h.Linkname))
		}
		h.Mode |= 0o4755
		if err := tw.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return &buf
}

// TestHostileSandbox: an archive that comes out of a sandbox writes nothing outside the target.
func TestHostileSandbox(t *testing.T) {
	t.Parallel()
	file := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name, Linkname: "bad"} }
	link := func(name, to string) tar.Header {
		return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
	}
	for name, headers := range map[string][]tar.Header{
		"dots":        {file("../bad")},
		"absolute":    {file("/tmp/bad")},
		"link":        {link("l", ".."), file("l/bad")},
		"link chain":  {link("a", "b"), link("b", "../outside"), file("a/bad")},
		"directory":   {link("l", "../outside"), {Typeflag: tar.TypeDir, Name: "l/bad/"}},
		"hard link":   {{Typeflag: tar.TypeLink, Name: "h", Linkname: "../outside/secret"}},
		"hard to l":   {link("l", "../outside/secret"), {Typeflag: tar.TypeLink, Name: "h", Linkname: "l"}},
		"hard in l":   {link("l", "../outside"), {Typeflag: tar.TypeLink, Name: "h", Linkname: "l/secret"}},
		"device":      {{Typeflag: tar.TypeChar, Name: "d", Devmajor: 1, Devminor: 3}},
		"fifo":        {{Typeflag: tar.TypeFifo, Name: "d"}},
		"itself":      {file(".")},
		"over a tree": {file("t/x"), file("t")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			secret := filepath.Join(dir, "outside/secret")
			if err := errors.Join(os.Mkdir(filepath.Dir(secret), 0o755), os.WriteFile(secret, []byte("secret"), 0o644)); err != nil {
				t.Fatal(err)
			}
			done, err := unpackTree(filepath.Join(dir, "to"), archiveOf(t, append([]tar.Header{file("good")}, headers...)...))
			if err == nil {
				t.Errorf("unpacked %+v", done)
			}
			all, err := filepath.Glob(dir + "/*")
			if err != nil || len(all) != 2 {
				t.Errorf("%v, %v", all, err)
			}
			outside, err := os.ReadDir(filepath.Dir(secret))
			if got, rerr := os.ReadFile(secret); err != nil || len(outside) != 1 || rerr != nil || string(got) != "secret" {
				t.Errorf("outside: %v, %q", outside, got)
			}
		})
	}
}

// TestUnpackReplacesLinks: what is there is replaced, not written through, and set-id bits do not come along.
func TestUnpackReplacesLinks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	victim, to := filepath.Join(dir, "victim"), filepath.Join(dir, "to")
	if err := errors.Join(os.WriteFile(victim, []byte("victim"), 0o644), os.Mkdir(to, 0o755), os.Symlink(victim, to+"/planted")); err != nil {
		t.Fatal(err)
	}
	archive := archiveOf(t, tar.Header{Typeflag: tar.TypeDir, Name: "./"}, tar.Header{Typeflag: tar.TypeReg, Name: "planted", Linkname: "1"},
		tar.Header{Typeflag: tar.TypeSymlink, Name: "own", Linkname: victim}, tar.Header{Typeflag: tar.TypeReg, Name: "own", Linkname: "2"},
		tar.Header{Typeflag: tar.TypeLink, Name: "same", Linkname: "own"})
	done, err := unpackTree(to, archive)
	if err != nil || done.Entries != 5 || done.SizeBytes != 2 {
		t.Fatalf("%+v, %v", done, err)
	}
	for p, want := range map[string]string{victim: "victim", to + "/planted": "1", to + "/own": "2", to + "/same": "2"} {
		info, err := os.Lstat(p)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(p); err != nil || string(got) != want || info.Mode()&(os.ModeSymlink|os.ModeSetuid) != 0 {
			t.Errorf("%s: %q, %v, %v", p, got, info.Mode(), err)
		}
	}
}

// TestPackSkips what is neither file nor directory nor link, and says so; a file that cannot be read is an error.
func TestPackSkips(t *testing.T) {
	t.Parallel()
	var skipped []string
	if err := packTree(t.Context(), "/dev", new(bytes.Buffer), func(p string) { skipped = append(skipped, p) }); err != nil && !strings.Contains(err.Error(), "/dev/") {
		t.Fatal(err)
	}
	if !strings.Contains(strings.Join(skipped, " "), "/dev/") {
		t.Errorf("skipped %v", skipped)
	}
	if err := packTree(t.Context(), t.TempDir()+"/none", new(bytes.Buffer), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}
