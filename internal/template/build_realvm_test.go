//go:build realvm || long

package template

import (
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/space-sandbox/space/internal/pool"
)

func build(t *testing.T, r Recipe) (pool.Manifest, string) {
	t.Helper()
	dir := t.TempDir()
	p, err := pool.Open(pool.Config{Dir: dir, Kind: pool.KindCopy})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	st, err := p.NewStage("test")
	if err != nil {
		t.Fatal(err)
	}
	work := t.TempDir()
	b := Builder{WorkDir: work, AptDir: "/etc/apt", Logger: slog.New(slog.NewTextHandler(t.Output(), nil))}
	m, err := b.Build(t.Context(), r, st, func(s string) { t.Log(time.Now().Format("05.000"), s) })
	if err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(work); err != nil || len(left) != 0 {
		t.Errorf("the build left %v, %v", left, err)
	}
	if err := p.InstallTemplate(t.Context(), st, m); err != nil {
		t.Fatal(err)
	}
	return m, filepath.Join(dir, "templates", strings.TrimPrefix(m.Digest, "sha256:"), "rootfs.img")
}

func debugfs(t *testing.T, image, command string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "debugfs", "-R", command, image).Output()
	if err != nil {
		t.Fatalf("debugfs %s: %v", command, err)
	}
	return string(out)
}

func checkImage(t *testing.T, image string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "e2fsck", "-fn", image).CombinedOutput(); err != nil {
		t.Errorf("e2fsck: %v\n%s", err, out)
	}
	if got := debugfs(t, image, "cat /etc/passwd"); !strings.Contains(got, "\nuser:x:1000:1000::/home/user:") {
		t.Errorf("passwd:\n%s", got)
	}
	if got := debugfs(t, image, "stat /home/user"); !strings.Contains(got, "User:  1000   Group:  1000") {
		t.Errorf("home:\n%s", got)
	}
	if got := debugfs(t, image, "cat /etc/machine-id"); got != "" {
		t.Errorf("machine-id is %q", got)
	}
}

func TestBuildMini(t *testing.T) {
	started := time.Now()
	m, image := build(t, mini())
	t.Logf("mini: %d bytes in %v", m.SizeBytes, time.Since(started))
	if m.SizeBytes > 80e6 {
		t.Errorf("mini has %d bytes", m.SizeBytes)
	}
	checkImage(t, image)
}
