//go:build realvm

package e2e

import (
	"archive/tar"
	"bytes"
	"io"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
)

// TestImages imports two images that SPACE had no part in making, and runs them.
func TestImages(t *testing.T) {
	t.Parallel()
	i := install(t)
	i.start("--registry-allow", "127.0.0.1/32")
	t.Run("scratch", func(t *testing.T) { testScratch(t, i) })
	t.Run("busybox", func(t *testing.T) { testBusybox(t, i) })
	t.Run("refused", func(t *testing.T) { testRefused(t, i) })
}

// testScratch uploads an image with nothing but one static program.
func testScratch(t *testing.T, i *installation) {
	img := imageOf(t, v1.Config{Entrypoint: []string{"/hello"}, Cmd: []string{"world"}, Env: []string{"FROM_IMAGE=yes"}, WorkingDir: "/not/there/yet"},
		[]file{{name: "hello", mode: 0o755, content: staticProgram(t)}})
	archive := filepath.Join(t.TempDir(), "scratch.tar")
	tag, err := name.NewTag("example.test/scratch:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := tarball.WriteToFile(archive, tag, img); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	res, err := i.client.ImportArchive(t.Context(), "team/scratch:1", f, -1, client.Wait(4*time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	tpl := res.Template
	if res.Operation.State != "succeeded" || tpl == nil || tpl.Name != "team/scratch" || tpl.User != "root" || tpl.Workdir != "/not/there/yet" ||
		strings.Join(tpl.Entrypoint, " ") != "/hello world" || tpl.Env["FROM_IMAGE"] != "yes" || tpl.StartCommand != nil || tpl.ReadyCommand != nil {
		t.Fatalf("imported: %+v %+v", res.Operation, tpl)
	}
	box := i.create(apiv1.CreateSandbox{Template: "team/scratch:1"})
	if box.Template.Digest != tpl.Digest {
		t.Errorf("made from %s, imported %s", box.Template.Digest, tpl.Digest)
	}
	out := i.exec(box.ID, apiv1.Exec{Argv: []string{"/hello", "there"}})
	if out.Stdout != "hello there from /not/there/yet, yes\n" {
		t.Errorf("output %q, %q, error %+v", out.Stdout, out.Stderr, out.Error)
	}
	if err := i.client.DeleteTemplate(t.Context(), "team/scratch:1"); client.Code(err) != "template_in_use" {
		t.Errorf("delete in use: %v", err)
	}
	i.delete(box.ID)
	if err := i.client.DeleteTemplate(t.Context(), "team/scratch:1"); err != nil {
		t.Errorf("delete: %v", err)
	}
	if _, err := i.client.Template(t.Context(), tpl.Digest); client.Code(err) != "template_not_found" {
		t.Errorf("after delete: %v", err)
	}
}

// testBusybox fetches an image of several layers from a registry on loopback: whiteouts, links, owners, modes.
func testBusybox(t *testing.T, i *installation) {
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatal(err)
	}
	base := []file{{name: "bin/busybox", mode: 0o755, content: busybox}, {name: "etc/passwd", mode: 0o644,
		content: []byte("root:x:0:0:root:/root:/bin/sh\napp:x:1234:4321:app:/home/app:/bin/sh\n")}, {name: "etc/gone", mode: 0o644}, {name: "opt/old/file", mode: 0o644},
		{name: "home/app/", mode: 0o750, uid: 1234, gid: 4321}, {name: "home/app/own", mode: 0o600, uid: 1234, gid: 4321, content: []byte("mine\n")},
		{name: "var/lib/other", mode: 0o4755, uid: 65534, gid: 65534}, {name: "lib64", link: "/usr/lib64"}}
	for _, applet := range []string{"sh", "cat", "ls", "stat", "id", "echo"} {
		base = append(base, file{name: "bin/" + applet, link: "busybox"})
	}
	upper := []file{{name: "etc/.wh.gone", mode: 0o644}, {name: "opt/old/.wh..wh..opq", mode: 0o644}, {name: "opt/old/new", mode: 0o644, content: []byte("new\n")},
		{name: "opt/hard", hard: "opt/old/new"}}
	img := imageOf(t, v1.Config{User: "app:app", WorkingDir: "/home/app", Env: []string{"PATH=/bin"}}, base, libraries(t, "/bin/busybox"), upper)
	server := httptest.NewServer(registry.New())
	defer server.Close()
	image := strings.TrimPrefix(server.URL, "http://") + "/some/busybox:v1"
	ref, err := name.ParseReference(image)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, img); err != nil {
		t.Fatal(err)
	}
	if out, err := i.space(t.Context(), "template", "import", "bb", image); err != nil || !strings.HasPrefix(out, "sha256:") {
		t.Fatalf("import: %s, %v", out, err)
	}
	i.create(apiv1.CreateSandbox{Template: "bb", Name: "bb"})
	if got := i.sh("bb", "id -u; id -g; pwd; cat own"); got != "1234\n4321\n/home/app\nmine\n" {
		t.Errorf("user, directory, own file: %q", got)
	}
	if got := i.sh("bb", "ls /opt/old; ls /etc/gone 2>&1 | cat; stat -c '%u:%g %a' /var/lib/other /home/app; stat -c %h /opt/hard"); got != "new\nls: /etc/gone: No such file or directory\n65534:65534 4755\n1234:4321 750\n2\n" {
		t.Errorf("content: %q", got)
	}
	i.delete("bb")
}

// testRefused shows that the guards are where the product is.
func testRefused(t *testing.T, i *installation) {
	for code, in := range map[string]apiv1.ImportTemplate{
		"forbidden":        {Name: "x", Image: "169.254.169.254/latest/meta-data:1"},
		"invalid_argument": {Name: "x", Image: "not an image"},
	} {
		if _, err := i.client.ImportImage(t.Context(), in, client.Wait(time.Minute)); client.Code(err) != code {
			t.Errorf("%s: %v, want %s", in.Image, err, code)
		}
	}
	var bad bytes.Buffer
	tw := tar.NewWriter(&bad)
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := i.client.ImportArchive(t.Context(), "x", &bad, -1, client.Wait(time.Minute)); client.Code(err) != "image_invalid" {
		t.Errorf("an empty archive: %v", err)
	}
	hostile := imageOf(t, v1.Config{}, []file{{name: "../../escape", mode: 0o644}})
	path := filepath.Join(t.TempDir(), "hostile.tar")
	tag, err := name.NewTag("example.test/hostile:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := tarball.WriteToFile(path, tag, hostile); err != nil {
		t.Fatal(err)
	}
	if out, err := i.space(t.Context(), "template", "import", "x", path); err == nil || !strings.Contains(out, "leads out of the image") {
		t.Errorf("hostile: %s, %v", out, err)
	}
	if left, err := filepath.Glob(filepath.Join(i.dir, "pool", "staging", "*")); err != nil || len(left) != 0 {
		t.Errorf("left in the pool: %v, %v", left, err)
	}
}

// file is an entry of a layer.
type file struct {
	name       string // a directory ends in /
	mode       int64
	uid, gid   int
	content    []byte
	link, hard string
}

func imageOf(t *testing.T, config v1.Config, layers ...[]file) v1.Image {
	t.Helper()
	img := empty.Image
	for _, files := range layers {
		var buf bytes.Buffer
		tw := tar.NewWriter(&buf)
		for _, f := range files {
			h := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Uid: f.uid, Gid: f.gid, Size: int64(len(f.content))}
			switch {
			case strings.HasSuffix(f.name, "/"):
				h.Typeflag = tar.TypeDir
			case f.link != "":
				h.Typeflag, h.Linkname = tar.TypeSymlink, f.link
			case f.hard != "":
				h.Typeflag, h.Linkname = tar.TypeLink, f.hard
			}
			if err := tw.WriteHeader(h); err != nil {
				t.Fatal(err)
			}
			if _, err := tw.Write(f.content); err != nil {
				t.Fatal(err)
			}
		}
		if err := tw.Close(); err != nil {
			t.Fatal(err)
		}
		l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil })
		if err != nil {
			t.Fatal(err)
		}
		if img, err = mutate.AppendLayers(img, l); err != nil {
			t.Fatal(err)
		}
	}
	img, err := mutate.Config(img, config)
	if err != nil {
		t.Fatal(err)
	}
	file, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", "amd64"
	if img, err = mutate.ConfigFile(img, file); err != nil {
		t.Fatal(err)
	}
	return img
}

// staticProgram compiles a program that needs nothing around it.
func staticProgram(t *testing.T) []byte {
	t.Helper()
	dir := t.TempDir()
	source := `package main

import ("fmt"; "os")

func main() {
	dir, err := os.Getwd()
	if err != nil { panic(err) }
	fmt.Printf("hello %s from %s, %s\n", os.Args[1], dir, os.Getenv("FROM_IMAGE"))
}
`
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", "hello", "main.go")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	data, err := os.ReadFile(filepath.Join(dir, "hello"))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// libraries are the files that the host's dynamic loader takes for a program; none for a static one.
func libraries(t *testing.T, program string) []file {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ldd", program).CombinedOutput()
	if err != nil {
		return nil // not a dynamic executable
	}
	var files []file
	for _, word := range strings.Fields(string(out)) {
		if !strings.HasPrefix(word, "/") {
			continue
		}
		data, err := os.ReadFile(word)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file{name: strings.TrimPrefix(word, "/"), mode: 0o755, content: data})
	}
	return files
}
