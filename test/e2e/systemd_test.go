//go:build long && realvm

package e2e

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	apiv1 "github.com/space-sandbox/space/api/v1"
)

// TestSystemdImage imports a whole Debian with systemd and dbus as its init would have it, made here, and runs it
// unmodified: the agent stays PID 1, the entry point is shown and not run, and what the system consists of works.
func TestSystemdImage(t *testing.T) {
	t.Parallel()
	i := install(t)
	i.start()
	dir := t.TempDir()
	root := filepath.Join(dir, "root.tar")
	out, err := exec.CommandContext(t.Context(), "mmdebstrap", "--mode=root", "--variant=minbase", "--include=systemd-sysv,dbus,libpam-systemd",
		"--skip=output/dev", "--format=tar", "bookworm", root).CombinedOutput()
	if err != nil {
		t.Fatalf("mmdebstrap: %v\n%s", err, out)
	}
	layer, err := tarball.LayerFromFile(root)
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(imageOf(t, v1.Config{Entrypoint: []string{"/sbin/init"}, Env: []string{"container=docker"}}), layer)
	if err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag("example.test/systemd:1")
	if err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(dir, "image.tar")
	if err := tarball.WriteToFile(archive, tag, img); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if out, err := i.space(t.Context(), "template", "import", "systemd", archive); err != nil || !strings.HasPrefix(out, "sha256:") {
		t.Fatalf("import: %s, %v", out, err)
	}
	t.Logf("imported in %v", time.Since(began))
	tpl, err := i.client.Template(t.Context(), "systemd")
	if err != nil || len(tpl.Entrypoint) != 1 || tpl.Entrypoint[0] != "/sbin/init" || tpl.Env["container"] != "docker" || tpl.User != "root" {
		t.Errorf("template %+v, %v", tpl, err)
	}
	i.create(apiv1.CreateSandbox{Template: "systemd", Name: "systemd"})
	for line, want := range map[string]string{
		"id -un; pwd; echo $container":                                     "root\n/root\ndocker\n",
		"cat /proc/1/comm":                                                 "init\n",
		"readlink /sbin/init":                                              "/lib/systemd/systemd\n",
		"systemctl --version | head -n 1 | cut -d' ' -f1,2":                "systemd 252\n",
		"systemctl is-system-running":                                      "offline\n", // it is here, and not what runs the machine
		"dpkg -V systemd dbus libc6; dpkg-query -W -f '${Status}\\n' dbus": "install ok installed\n",
		"stat -c %a /usr/bin/su; stat -c %U:%G:%a /usr/lib/dbus-1.0/dbus-daemon-launch-helper":                                                                            "4755\nroot:messagebus:4754\n",
		"mkdir -p /run/dbus && dbus-daemon --system --fork && dbus-send --system --print-reply --dest=org.freedesktop.DBus / org.freedesktop.DBus.GetId | grep -c string": "1\n",
		"systemd-tmpfiles --create 2>/dev/null; ls -d /run/lock":                                                                                                          "/run/lock\n",
		"systemd-analyze --man=no verify /lib/systemd/system/dbus.service && echo verified":                                                                               "verified\n",
	} {
		res := i.exec("systemd", apiv1.Exec{Argv: []string{"sh", "-c", line}})
		if res.Stdout != want {
			t.Errorf("%s: %q, want %q; stderr %q, error %+v", line, res.Stdout, want, res.Stderr, res.Error)
		}
	}
	res := i.exec("systemd", apiv1.Exec{Argv: []string{"sh", "-c", "id -un; groups; cat /etc/shadow"}, User: "messagebus"})
	if res.Stdout != "messagebus\nmessagebus\n" || !strings.Contains(res.Stderr, "Permission denied") {
		t.Errorf("as a system's user: %q %q", res.Stdout, res.Stderr)
	}
}
