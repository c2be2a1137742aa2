package confine_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/space-sandbox/space/internal/confine"
)

// A service of the host whose socket everybody may use is reached by a confined process, unless its root is bare.
func TestBareRootHidesSockets(t *testing.T) {
	t.Parallel()
	for _, parent := range []string{"/run", "/tmp"} {
		dir, err := os.MkdirTemp(parent, "bare-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		path := filepath.Join(dir, "s")
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		for _, p := range []string{dir, path} {
			if err := os.Chmod(p, 0o777); err != nil {
				t.Fatal(err)
			}
		}
		for _, bare := range []bool{false, true} {
			spec := shell(`exec perl -MSocket -e 'socket(S, AF_UNIX, SOCK_STREAM, 0); print connect(S, sockaddr_un($ARGV[0])) ? "reached" : "$!"' ` + path)
			spec.Landlock = &confine.Landlock{ReadOnly: []string{"/bin", "/lib", "/lib64", "/usr", "/missing"}}
			spec.Namespaces = confine.Namespaces{Net: true, Mount: true, Devices: []string{}, Bare: bare}
			want := "reached"
			if bare {
				want = "No such file or directory"
			}
			if text, status := output(t, spec); status.ExitCode != 0 || text != want {
				t.Errorf("%s, bare %v: %q %v", parent, bare, text, status)
			}
		}
	}
}

// What is left of the root is what the process needs, and the rest cannot be written.
func TestBareRoot(t *testing.T) {
	t.Parallel()
	spec := shell(`cd / && for d in *; do [ -L $d ] || [ ! -d $d ] || [ -z "$(ls -A $d)" ] || echo $d; done; echo x 2>/dev/null > /tmp/x && echo written`)
	spec.Namespaces = confine.Namespaces{Mount: true, Bare: true}
	text, _ := output(t, spec)
	if got := strings.Fields(text); strings.Join(got, " ") != "dev proc usr" {
		t.Errorf("left: %v", got)
	}
	spec.Namespaces.Mount = false
	if _, err := confine.Start(spec); err == nil {
		t.Error("bare without mounts of its own was accepted")
	}
	if _, err := os.Stat("/run"); err != nil {
		t.Errorf("our own root: %v", err)
	}
	if left, err := os.ReadDir("/run"); err != nil || len(left) == 0 {
		t.Errorf("our own /run: %v %v", left, err)
	}
}

func TestOOMScore(t *testing.T) {
	t.Parallel()
	spec := sleeper()
	spec.OOMScore = 321
	p := start(t, spec)
	if score, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", p.PID())); err != nil || string(score) != "321\n" {
		t.Errorf("%q %v", score, err)
	}
	spec.OOMScore = -1
	if p, err := confine.Start(spec); err == nil {
		p.Close()
		t.Error("a score that protects was accepted")
	}
}
