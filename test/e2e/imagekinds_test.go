//go:build realvm

package e2e

import (
	"archive/tar"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"

	apiv1 "github.com/space-sandbox/space/api/v1"
)

// muslProgram says who it is by musl's own means: its loader, its user lookup, its environment.
const muslProgram = `#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
	char dir[256];
	struct passwd *p = getpwuid(getuid());
	FILE *made = fopen("made", "w");
	if (p == NULL || getcwd(dir, sizeof dir) == NULL || made == NULL || fclose(made) != 0)
		return 1;
	printf("%s of %s in %s says %s: %s\n", p->pw_name, p->pw_dir, dir, getenv("GREETING"), argc > 1 ? argv[1] : "-");
	return 0;
}
`

// TestMuslImage imports an image laid out as Alpine's are: musl and its loader, busybox for everything else, no glibc. It
// comes as an OCI layout by the command line, and is run unmodified.
func TestMuslImage(t *testing.T) {
	t.Parallel()
	i := install(t)
	i.start()
	loader, err := os.ReadFile("/lib/ld-musl-x86_64.so.1")
	if err != nil {
		t.Fatal(err)
	}
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatal(err)
	}
	base := []file{{name: "lib/ld-musl-x86_64.so.1", mode: 0o755, content: loader}, {name: "lib/libc.musl-x86_64.so.1", link: "ld-musl-x86_64.so.1"},
		{name: "bin/busybox", mode: 0o755, content: busybox}, {name: "etc/alpine-release", mode: 0o644, content: []byte("3.20.0\n")},
		{name: "etc/passwd", mode: 0o644, content: []byte("root:x:0:0:root:/root:/bin/sh\napp:x:100:101:App:/srv/app:/sbin/nologin\n")},
		{name: "etc/group", mode: 0o644, content: []byte("root:x:0:\napp:x:101:app\n")}, {name: "root/", mode: 0o700}, {name: "tmp/", mode: 0o1777}}
	for _, applet := range []string{"sh", "ls", "cat", "id", "stat"} {
		base = append(base, file{name: "bin/" + applet, link: "/bin/busybox"})
	}
	app := []file{{name: "srv/app/", mode: 0o755, uid: 100, gid: 101}, {name: "usr/local/bin/hello", mode: 0o755, content: muslBinary(t)}}
	img := imageOf(t, v1.Config{User: "app", WorkingDir: "/srv/app", Entrypoint: []string{"/usr/local/bin/hello"}, Cmd: []string{"world"},
		Env: []string{"PATH=/usr/local/bin:/bin", "GREETING=guten Tag"}}, base, libraries(t, "/bin/busybox"), app)
	if out, err := i.space(t.Context(), "template", "import", "team/musl:1", ociLayout(t, img)); err != nil || !strings.HasPrefix(out, "sha256:") {
		t.Fatalf("import: %s, %v", out, err)
	}
	tpl, err := i.client.Template(t.Context(), "team/musl:1")
	if err != nil || strings.Join(tpl.Entrypoint, " ") != "/usr/local/bin/hello world" || tpl.User != "app" || tpl.Workdir != "/srv/app" {
		t.Errorf("template %+v, %v", tpl, err)
	}
	i.create(apiv1.CreateSandbox{Template: "team/musl:1", Name: "musl"})
	out := i.exec("musl", apiv1.Exec{Argv: tpl.Entrypoint})
	if out.Stdout != "app of /srv/app in /srv/app says guten Tag: world\n" {
		t.Errorf("the entry point says %q, %q, %+v", out.Stdout, out.Stderr, out.Error)
	}
	// Found in the image's PATH, with the command's own environment on top.
	out = i.exec("musl", apiv1.Exec{Argv: []string{"hello", "Ü"}, Env: map[string]string{"GREETING": "hi"}, User: "root", Cwd: "/tmp"})
	if out.Stdout != "root of /root in /tmp says hi: Ü\n" {
		t.Errorf("as root it says %q, %q, %+v", out.Stdout, out.Stderr, out.Error)
	}
	if got := i.sh("musl", "id; cat /etc/alpine-release; stat -c %U:%G made"); got != "uid=100(app) gid=101(app) groups=101(app)\n3.20.0\napp:app\n" {
		t.Errorf("user and files: %q", got)
	}
}

// muslBinary compiles muslProgram against musl, dynamically.
func muslBinary(t *testing.T) []byte {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "hello.c"), []byte(muslProgram), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "musl-gcc", "-O1", "-Wall", "-Werror", "-o", "hello", "hello.c")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("musl-gcc: %v\n%s", err, out)
	}
	data, err := os.ReadFile(filepath.Join(dir, "hello"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(data, []byte("/lib/ld-musl-x86_64.so.1")) {
		t.Fatal("the program is not linked to musl's loader")
	}
	return data
}

// ociLayout writes an image as the archive of an OCI layout.
func ociLayout(t *testing.T, img v1.Image) string {
	t.Helper()
	dir := t.TempDir()
	path, err := layout.Write(filepath.Join(dir, "layout"), empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := path.AppendImage(img); err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(dir, "image.tar")
	f, err := os.Create(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tw := tar.NewWriter(f)
	if err := tw.AddFS(os.DirFS(string(path))); err != nil {
		t.Fatal(err)
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return archive
}
